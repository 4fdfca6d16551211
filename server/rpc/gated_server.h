#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/rpc/connection_gate.h"

namespace strata::rpc {

// A grpc::Server that gets its connections through a gate.
class GatedServer {
 public:
  struct Options {
    std::string listen;  // HOST:PORT
    int descriptor_max = 1024;
    std::function<void()> on_refused;
    std::shared_ptr<grpc::ServerCredentials> credentials;
  };

  // Builds what `builder` describes. Unavailable, naming the address, when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<GatedServer>> Start(Options options,
                                                            grpc::ServerBuilder* builder);
  ~GatedServer() { Stop(std::chrono::milliseconds(0)); }

  const std::string& address() const { return address_; }
  grpc::HealthCheckServiceInterface* health() { return server_->GetHealthCheckService(); }
  // Takes no more connections, gives calls that long to end, and ends.
  void Stop(std::chrono::milliseconds grace);

 private:
  GatedServer() = default;

  std::string address_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionGate> gate_;  // goes first: it hands connections to the server
};

}  // namespace strata::rpc
