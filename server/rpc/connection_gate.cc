#include "server/rpc/connection_gate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace strata::rpc {
namespace {

constexpr int kBacklog = 1024;
constexpr int kPause_ms = 50;  // after accept found no descriptor or memory

absl::Status CannotListen(const std::string& address) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on '", address,
                   "': not an address of this machine, or in use by another process"));
}

uint16_t PortOf(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

void SetPort(sockaddr* address, uint16_t port) {
  auto& field = address->sa_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(address)->sin6_port
                                               : reinterpret_cast<sockaddr_in*>(address)->sin_port;
  field = htons(port);
}

void Set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

// A listening socket, or -1. `alone`: an IPv6 wildcard takes IPv4 connections too.
int Bind(const sockaddr* address, socklen_t size, bool alone) {
  const int listener =
      socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (listener < 0) return -1;
  // For restarts. Without SO_REUSEPORT: a second server on the port would get half of the calls.
  Set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address->sa_family == AF_INET6) Set(listener, IPPROTO_IPV6, IPV6_V6ONLY, alone ? 0 : 1);
  if (bind(listener, address, size) == 0 && listen(listener, kBacklog) == 0) return listener;
  close(listener);
  return -1;
}

class GateImpl final : public ConnectionGate {
 public:
  GateImpl() : wake_(eventfd(0, EFD_CLOEXEC)) { STRATA_CHECK(wake_ >= 0); }
  ~GateImpl() override {
    Close();
    close(wake_);
  }

  absl::Status Bind(const std::string& address);
  const std::string& address() const override { return address_; }
  void Open(Options options) override {
    options_ = std::move(options);
    thread_ = std::thread([this] { Run(); });
  }
  void Close() override {
    if (thread_.joinable()) {
      const uint64_t one = 1;
      STRATA_CHECK(write(wake_, &one, sizeof(one)) == sizeof(one));
      thread_.join();
    }
    for (const int listener : listeners_) close(listener);
    listeners_.clear();
  }
  int HangUp() override;

 private:
  void Run();
  // False when accepting has to wait.
  bool AcceptFrom(int listener);

  const int wake_;
  std::vector<int> listeners_;
  std::string address_;
  uint16_t port_ = 0;
  Options options_;
  std::thread thread_;
};

absl::Status GateImpl::Bind(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  }
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(std::string(host).c_str(), nullptr, &hints, &found) != 0) {
    return CannotListen(address);
  }
  const bool alone = found->ai_next == nullptr;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SetPort(each->ai_addr, static_cast<uint16_t>(port));
    const int listener = rpc::Bind(each->ai_addr, each->ai_addrlen, alone);
    if (listener < 0) continue;  // a machine without IPv6 still has a name for ::1
    listeners_.push_back(listener);
    port = PortOf(listener);
  }
  freeaddrinfo(found);
  if (listeners_.empty()) return CannotListen(address);
  port_ = static_cast<uint16_t>(port);
  address_ = absl::StrCat(address.substr(0, colon), ":", port);
  return absl::OkStatus();
}

bool GateImpl::AcceptFrom(int listener) {
  const int connection = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (connection < 0) {
    // Anything else is the end of that one connection, not of the listener.
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  }
  if (connection >= options_.descriptor_max) {
    close(connection);
    options_.on_refused();
    return true;
  }
  Set(connection, IPPROTO_TCP, TCP_NODELAY, 1);
  options_.admit(listener, connection);
  return true;
}

// gRPC owns the connections and tells nobody which there are, so they are looked up. A descriptor
// that is closed and used anew meanwhile is at worst another connection to a server that is going.
int GateImpl::HangUp() {
  int open = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int descriptor = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &descriptor)) continue;
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
    if (PortOf(descriptor) != port_) continue;
    shutdown(descriptor, SHUT_WR);
    ++open;
  }
  return open;
}

void GateImpl::Run() {
  std::vector<pollfd> polled = {{wake_, POLLIN, 0}};
  for (const int listener : listeners_) polled.push_back({listener, POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // EINTR
    if (polled.front().revents != 0) return;
    bool pause = false;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0 && !AcceptFrom(polled[i].fd)) pause = true;
    }
    if (pause) poll(polled.data(), 1, kPause_ms);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const std::string& address) {
  auto gate = std::make_unique<GateImpl>();
  const absl::Status status = gate->Bind(address);
  if (!status.ok()) return status;
  return gate;
}

int RaiseDescriptorLimit() {
  rlimit limit{};
  STRATA_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  STRATA_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int32_t>::max()));
}

}  // namespace strata::rpc
