#include "server/rpc/grpc_server.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/support/server_interceptor.h"
#include "server/rpc/cache_service.h"
#include "server/rpc/stats_watchers.h"

namespace strata::rpc {
namespace {

// What streams that were cut off get to deliver their status.
constexpr std::chrono::milliseconds kFlushTime{1000};
// gRPC's own default, 300 s, would count pings of patient clients as abuse.
constexpr int kPingIntervalMin_ms = 10000;

int Milliseconds(std::chrono::seconds time) { return static_cast<int>(time.count() * 1000); }

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

  ~GrpcServerImpl() override {
    if (server_ != nullptr) Stop();
  }

  absl::Status Listen(const GrpcServerOptions& options, CallMetrics* metrics);

  const std::string& address() const override { return address_; }
  void MarkReady() override { SetReady(true); }
  void SetLive(bool live) override {
    server_->GetHealthCheckService()->SetServingStatus(kLiveness, live);
  }
  bool Drain(std::chrono::nanoseconds timeout) override;

 private:
  void SetReady(bool ready) {
    server_->GetHealthCheckService()->SetServingStatus("", ready);
    server_->GetHealthCheckService()->SetServingStatus(kReadiness, ready);
  }
  void Stop() { server_->Shutdown(std::chrono::system_clock::now() + kFlushTime); }

  ServingState* const state_;
  // Before the services and the server, which post to them until they are gone.
  WorkQueue tokenizing_;
  WorkQueue delivery_;
  StatsWatchers watchers_;
  std::unique_ptr<grpc::Service> inference_;
  std::unique_ptr<grpc::Service> cache_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

void SetLimits(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.receive_bytes_max);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_max);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kPingIntervalMin_ms);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                              Milliseconds(options.connection_age_max));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                              Milliseconds(options.connection_grace));
  // Otherwise a second server on the same port would start, and get half of the calls.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc::ResourceQuota quota("strata");
  quota.Resize(options.memory_bytes);
  builder->SetResourceQuota(quota);
}

absl::Status GrpcServerImpl::Listen(const GrpcServerOptions& options, CallMetrics* metrics) {
  // gRPC serves health from hand-written parsers; reflection describes it only if its descriptors
  // are linked in, which this reference sees to.
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  SetLimits(options, &builder);
  builder.RegisterService(inference_.get());
  builder.RegisterService(cache_.get());
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<MalformedRequests>());
  factories.push_back(metrics->MakeInterceptorFactory());
  builder.experimental().SetInterceptorCreators(std::move(factories));
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    server_.reset();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on '", options.listen,
                     "': not an address of this machine, or in use by another process"));
  }
  address_ = absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port);
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
  Stop();
  server_.reset();
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
