#include "server/rpc/gated_server.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "base/status_macros.h"

namespace strata::rpc {
namespace {

constexpr std::chrono::milliseconds kLook{5};  // between two looks at what is still open

}  // namespace

absl::StatusOr<std::unique_ptr<GatedServer>> GatedServer::Start(Options options,
                                                                grpc::ServerBuilder* builder) {
  auto gated = absl::WrapUnique(new GatedServer);
  STRATA_ASSIGN_OR_RETURN(gated->gate_, ConnectionGate::Listen(options.listen));
  gated->address_ = gated->gate_->address();
  gated->acceptor_ = builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, options.credentials);
  gated->server_ = builder->BuildAndStart();
  if (gated->server_ == nullptr) {
    return absl::InternalError("gRPC could not start a server; its log says why");
  }
  grpc::experimental::ExternalConnectionAcceptor* const acceptor = gated->acceptor_.get();
  gated->gate_->Open(
      {options.descriptor_max,
       [acceptor](int listener, int connection) {
         grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
         parameters.listener_fd = listener;
         parameters.fd = connection;
         acceptor->HandleNewConnection(&parameters);
       },
       std::move(options.on_refused)});
  return gated;
}

void GatedServer::Stop(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  if (gate_ != nullptr) gate_->Close();
  // Once it shuts down, gRPC 1.51 resets calls that arrive before a client knows, which that client
  // sees as CANCELLED: nothing to retry. A connection that ends is UNAVAILABLE, so that comes
  // first.
  while (gate_ != nullptr && std::chrono::steady_clock::now() < deadline && gate_->HangUp() > 0) {
    std::this_thread::sleep_for(kLook);
  }
  gate_.reset();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_.reset();
}

}  // namespace strata::rpc
