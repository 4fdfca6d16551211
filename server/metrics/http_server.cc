#include "server/metrics/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/text_serializer.h"

namespace strata {
namespace {

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr size_t kThreads = 2;  // a scrape and a probe at once
constexpr size_t kRequestBytesMax = 4096;

class HttpServerImpl final : public MetricsHttpServer {
 public:
  explicit HttpServerImpl(Probes probes) : probes_(std::move(probes)) {}
  ~HttpServerImpl() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen(const std::string& listen);
  const std::string& address() const override { return address_; }
  void Add(const std::shared_ptr<prometheus::Collectable>& source) override {
    absl::MutexLock lock(&mutex_);
    sources_.push_back(source);
  }

 private:
  std::string Metrics() const;
  void Probe(const char* path, const std::function<bool()>& healthy);

  const Probes probes_;
  mutable absl::Mutex mutex_;
  std::vector<std::weak_ptr<prometheus::Collectable>> sources_ ABSL_GUARDED_BY(mutex_);
  std::string address_;
  httplib::Server server_;
  std::thread thread_;
};

std::string HttpServerImpl::Metrics() const {
  std::vector<std::weak_ptr<prometheus::Collectable>> sources;
  {
    absl::MutexLock lock(&mutex_);
    sources = sources_;
  }
  std::vector<prometheus::MetricFamily> families;
  for (const auto& weak : sources) {
    const auto source = weak.lock();
    if (source == nullptr) continue;
    std::vector<prometheus::MetricFamily> more = source->Collect();
    families.insert(families.end(), std::make_move_iterator(more.begin()),
                    std::make_move_iterator(more.end()));
  }
  return prometheus::TextSerializer().Serialize(families);
}

void HttpServerImpl::Probe(const char* path, const std::function<bool()>& healthy) {
  server_.Get(path, [healthy](const httplib::Request&, httplib::Response& response) {
    const bool ok = healthy();
    response.status = ok ? 200 : 503;
    response.set_content(ok ? "ok\n" : "not ok\n", "text/plain");
  });
}

absl::Status HttpServerImpl::Listen(const std::string& listen) {
  server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server_.set_payload_max_length(kRequestBytesMax);
  // By default the port would be shared with any other process that wants it.
  server_.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(Metrics(), kMetricsType);
  });
  Probe("/healthz", probes_.live);
  Probe("/readyz", probes_.ready);

  const size_t colon = listen.rfind(':');
  const std::string host = listen.substr(0, colon);
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(listen.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("'", listen, "' is not HOST:PORT"));
  }
  if (port == 0) {
    port = server_.bind_to_any_port(host);
  } else if (!server_.bind_to_port(host, port)) {
    port = -1;
  }
  if (port <= 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on '", listen,
                     "': not an address of this machine, or in use by another process"));
  }
  address_ = absl::StrCat(host, ":", port);
  thread_ = std::thread([this] { server_.listen_after_bind(); });
  // stop() is lost on a server that does not run yet.
  while (!server_.is_running()) std::this_thread::yield();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsHttpServer>> MetricsHttpServer::Start(
    const std::string& listen, Probes probes) {
  auto server = std::make_unique<HttpServerImpl>(std::move(probes));
  const absl::Status status = server->Listen(listen);
  if (!status.ok()) return status;
  return server;
}

}  // namespace strata
