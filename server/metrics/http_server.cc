#include "server/metrics/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <iterator>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/page.h"

namespace strata {
namespace {

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr size_t kThreads = 4;  // a scrape, a probe and two pages at once
constexpr size_t kRequestBytesMax = 4096;

// Says which script and style belong to an answer; not to be guessed by what is shown in it.
std::string MakeNonce() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

class HttpServerImpl final : public MetricsHttpServer {
 public:
  HttpServerImpl(Probes probes, std::function<std::string()> stats_json)
      : probes_(std::move(probes)), stats_json_(std::move(stats_json)) {}
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

  void ServePage();

  const Probes probes_;
  const std::function<std::string()> stats_json_;
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

// The page may run its own script and style and ask this server, and nothing else.
void HttpServerImpl::ServePage() {
  server_.Get("/", [](const httplib::Request&, httplib::Response& response) {
    const std::string nonce = MakeNonce();
    response.set_header("Content-Security-Policy",
                        absl::StrCat("default-src 'none'; connect-src 'self'; img-src data:; "
                                     "script-src 'nonce-",
                                     nonce, "'; style-src 'nonce-", nonce,
                                     "'; base-uri 'none'; form-action 'none'; "
                                     "frame-ancestors 'none'"));
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cache-Control", "no-store");
    response.set_content(absl::StrReplaceAll(kPage, {{kNonceMark, nonce}}),
                         "text/html; charset=utf-8");
  });
  server_.Get("/stats.json", [this](const httplib::Request&, httplib::Response& response) {
    response.set_header("Cache-Control", "no-store");
    response.set_content(stats_json_(), "application/json");
  });
}

absl::Status HttpServerImpl::Listen(const std::string& listen) {
  server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server_.set_payload_max_length(kRequestBytesMax);
  server_.set_keep_alive_max_count(1);
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
  ServePage();

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
    const std::string& listen, Probes probes, std::function<std::string()> stats_json) {
  auto server = std::make_unique<HttpServerImpl>(std::move(probes), std::move(stats_json));
  const absl::Status status = server->Listen(listen);
  if (!status.ok()) return status;
  return server;
}

}  // namespace strata
