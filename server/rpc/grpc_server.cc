#include "server/rpc/grpc_server.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/support/server_interceptor.h"
#include "server/rpc/cache_service.h"
#include "server/rpc/gated_server.h"
#include "server/rpc/server_credentials.h"
#include "server/rpc/stats_watchers.h"
#include "spdlog/spdlog.h"

namespace strata::rpc {
namespace {

// What streams that were cut off get to deliver their status.
constexpr std::chrono::milliseconds kFlushTime{1000};
// gRPC's own default, 300 s, would count pings of patient clients as abuse.
constexpr int kPingIntervalMin_ms = 10000;
// Descriptors beyond --max-connections for probes, and for the files of everything else.
constexpr int kProbeDescriptors = 64;
constexpr int kDescriptorReserve = 256;

// gRPC takes times as int; its largest stands for ever.
int Milliseconds(std::chrono::seconds time) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  return static_cast<int>(std::min<int64_t>(time.count() * 1000, kMost));
}

// gRPC answers a request it cannot parse with an UNIMPLEMENTED that says nothing; ours always say
// what is not implemented. Clients are told what it means instead.
class MalformedRequests final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo*) override {
    return new Interceptor;
  }

 private:
  class Interceptor final : public grpc::experimental::Interceptor {
   public:
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      if (methods->QueryInterceptionHookPoint(
              grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
        const grpc::Status status = methods->GetSendStatus();
        if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
            status.error_message().empty()) {
          methods->ModifySendStatus(
              {grpc::StatusCode::INVALID_ARGUMENT,
               "the request is not a well-formed message; is all of its text UTF-8?"});
        }
      }
      methods->Proceed();
    }
  };
};

class GrpcServerImpl final : public GrpcServer {
 public:
  GrpcServerImpl(const GrpcServerOptions& options, const RequestDefaults& defaults,
                 const ServerFacts& facts, ServingState* state, const Clock* clock)
      : state_(state),
        tokenizing_(options.tokenizing_max),
        delivery_(options.tokenizing_max),
        inference_(MakeInferenceService({state, clock, defaults, &tokenizing_, &delivery_}, facts)),
        cache_(MakeCacheService(state, &watchers_)) {}

  absl::Status Listen(const GrpcServerOptions& options, CallMetrics* metrics);

  const std::string& address() const override { return address_; }
  std::string health_address() const override {
    return health_ == nullptr ? "" : health_->address();
  }
  std::shared_ptr<prometheus::Collectable> security_metrics() const override {
    return security_metrics_.registry();
  }
  void MarkReady() override { SetReady(true); }
  void SetLive(bool live) override { SetHealth(kLiveness, live); }
  void RefreshSecurity() override { security_->Refresh(); }
  bool Drain(std::chrono::nanoseconds timeout) override;

 private:
  void SetReady(bool ready) {
    SetHealth("", ready);
    SetHealth(kReadiness, ready);
  }
  void SetHealth(const char* service, bool serving) {
    server_->health()->SetServingStatus(service, serving);
    if (health_ != nullptr) health_->health()->SetServingStatus(service, serving);
  }
  absl::Status ListenForHealth(const GrpcServerOptions& options, int connections_max);

  ServingState* const state_;
  SecurityMetrics security_metrics_;
  // Before the services and the servers, which post to them until they are gone.
  WorkQueue tokenizing_;
  WorkQueue delivery_;
  StatsWatchers watchers_;
  std::unique_ptr<grpc::Service> inference_;
  std::unique_ptr<grpc::Service> cache_;
  std::unique_ptr<PortSecurity> security_;
  std::unique_ptr<GatedServer> health_;
  std::unique_ptr<GatedServer> server_;
  std::string address_;
};

void SetLimits(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.receive_bytes_max);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.metadata_bytes_max);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_max);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              Milliseconds(options.handshake_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kPingIntervalMin_ms);
  if (options.connection_age_max.count() > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                Milliseconds(options.connection_age_max));
  }
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                              Milliseconds(options.connection_grace));
  grpc::ResourceQuota quota("strata");
  quota.Resize(options.memory_bytes);
  builder->SetResourceQuota(quota);
}

// What the process's limit of descriptors leaves of connections_max.
int AffordableConnections(int connections_max) {
  const int limit = RaiseDescriptorLimit();
  if (connections_max <= limit - kDescriptorReserve) return connections_max;
  spdlog::warn("max-connections: {} is more than this process's limit of {} open files allows; {}",
               connections_max, limit, limit - kDescriptorReserve);
  return limit - kDescriptorReserve;
}

absl::Status GrpcServerImpl::ListenForHealth(const GrpcServerOptions& options,
                                             int connections_max) {
  if (options.health_listen.empty()) return absl::OkStatus();
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  STRATA_ASSIGN_OR_RETURN(
      health_, GatedServer::Start({options.health_listen, connections_max + kProbeDescriptors,
                                   [this] { security_metrics_.CountConnectionRefused(); },
                                   MakeServerCredentials(nullptr, nullptr)},
                                  &builder));
  return absl::OkStatus();
}

absl::Status GrpcServerImpl::Listen(const GrpcServerOptions& options, CallMetrics* metrics) {
  STRATA_ASSIGN_OR_RETURN(security_, PortSecurity::Load(options.security, &security_metrics_));
  // gRPC serves health from hand-written parsers; reflection describes it only if its descriptors
  // are linked in, which this reference sees to.
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  builder.RegisterService(inference_.get());
  builder.RegisterService(cache_.get());
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<MalformedRequests>());
  factories.push_back(metrics->MakeInterceptorFactory());
  builder.experimental().SetInterceptorCreators(std::move(factories));
  const int connections_max = AffordableConnections(options.connections_max);
  STRATA_ASSIGN_OR_RETURN(
      server_, GatedServer::Start({options.listen, connections_max,
                                   [this] { security_metrics_.CountConnectionRefused(); },
                                   security_->MakeCredentials()},
                                  &builder));
  address_ = server_->address();
  STRATA_RETURN_IF_ERROR(ListenForHealth(options, connections_max));
  SetReady(false);
  SetLive(true);
  return absl::OkStatus();
}

bool GrpcServerImpl::Drain(std::chrono::nanoseconds timeout) {
  SetReady(false);
  state_->BeginDrain();
  watchers_.EndAll(absl::UnavailableError("the server is shutting down"));
  const bool idle = state_->AwaitIdle(timeout);
  if (!idle) {
    state_->AbortAll(absl::UnavailableError("the server is shutting down: drain timeout reached"));
    state_->AwaitIdle(kFlushTime);
  }
  // What hangs up next would cut off ends that are not sent.
  watchers_.AwaitGone(kFlushTime);
  server_->Stop(kFlushTime);
  server_.reset();
  health_.reset();
  return idle;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const GrpcServerOptions& options, const RequestDefaults& defaults, const ServerFacts& facts,
    ServingState* state, CallMetrics* metrics, const Clock* clock) {
  auto server = std::make_unique<GrpcServerImpl>(options, defaults, facts, state, clock);
  const absl::Status status = server->Listen(options, metrics);
  if (!status.ok()) return status;
  return server;
}

}  // namespace strata::rpc
