#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/rpc/call_metrics.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/port_security.h"
#include "server/rpc/request_reader.h"
#include "server/rpc/serving_state.h"

namespace strata::rpc {

// Names that grpc.health.v1 knows besides "" (which follows kReadiness).
inline constexpr char kReadiness[] = "strata.v1.InferenceService";
inline constexpr char kLiveness[] = "liveness";

struct GrpcServerOptions {
  std::string listen = "127.0.0.1:50051";        // port 0: any free one
  std::string health_listen;                     // plain text, health alone; empty: nowhere
  SecurityOptions security;                      // of `listen`
  int receive_bytes_max = 64 << 20;              // of one message
  int metadata_bytes_max = 16 << 10;             // of one call
  size_t memory_bytes = size_t{512} << 20;       // of all messages being read or written
  int connections_max = 4096;                    // see ConnectionGate::Options::descriptor_max
  int streams_max = 1024;                        // calls of one connection at once
  std::chrono::seconds handshake_timeout{20};    // for TLS and for HTTP/2's settings
  std::chrono::seconds keepalive{60};            // idle time before a ping
  std::chrono::seconds keepalive_timeout{20};    // for its answer
  std::chrono::seconds connection_age_max{300};  // then clients are asked to reconnect; 0: never
  std::chrono::seconds connection_grace{3600};   // for their streams; longer than a generation
  size_t tokenizing_max = 1024;                  // texts waiting to be tokenized
};

// The gRPC server: both services, health, reflection, drain. It listens from Start on, whether or
// not a model is there: until state->Publish and MarkReady, liveness is SERVING and readiness is
// not. Health is served on a port of its own too, for probes that know neither TLS nor tokens.
class GrpcServer {
 public:
  // `state`, `metrics` and `clock` outlive the server; so do the engine and the model that are
  // published. Unavailable, naming the address, when it cannot be bound; InvalidArgument for
  // certificates and tokens that cannot be used.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const GrpcServerOptions& options, const RequestDefaults& defaults, const ServerFacts& facts,
      ServingState* state, CallMetrics* metrics, const Clock* clock);
  virtual ~GrpcServer() = default;  // stops at once

  // The address that was bound, with the port that was chosen.
  virtual const std::string& address() const = 0;
  virtual std::string health_address() const = 0;  // empty: none
  virtual std::shared_ptr<prometheus::Collectable> security_metrics() const = 0;

  virtual void MarkReady() = 0;
  // False while the engine has work but makes no step.
  virtual void SetLive(bool live) = 0;
  // Reads certificates and tokens that changed, so that a bad one is noticed before it is needed.
  virtual void RefreshSecurity() = 0;

  // Readiness goes, new calls get UNAVAILABLE, and streams in flight end by themselves or, at the
  // timeout, with UNAVAILABLE; then the server stops. Whether all ended by themselves.
  virtual bool Drain(std::chrono::nanoseconds timeout) = 0;
};

}  // namespace strata::rpc
