#include "server/rpc/cache_service.h"

#include "grpcpp/grpcpp.h"
#include "server/rpc/errors.h"
#include "server/rpc/stats_report.h"
#include "server/rpc/status_to_grpc.h"
#include "strata/v1/inference.grpc.pb.h"

namespace strata::rpc {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

class CacheService final : public v1::CacheService::CallbackService {
 public:
  CacheService(const ServingState* state, StatsWatchers* watchers)
      : state_(state), watchers_(watchers) {}

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetCacheStatsRequest*,
                                     v1::CacheStats* response) override {
    absl::StatusOr<v1::CacheStats> stats = ReportStats(*state_);
    if (stats.ok()) *response = std::move(*stats);
    return Answer(context, stats.status());
  }
  grpc::ServerWriteReactor<v1::CacheStats>* WatchStats(
      grpc::CallbackServerContext*, const v1::WatchCacheStatsRequest* request) override {
    return watchers_->Start(*request, state_);
  }
  grpc::ServerUnaryReactor* DropSession(grpc::CallbackServerContext* context,
                                        const v1::DropSessionRequest*,
                                        v1::DropSessionResponse*) override {
    return Answer(context, UnsupportedField("DropSession", ""));
  }
  grpc::ServerUnaryReactor* Flush(grpc::CallbackServerContext* context, const v1::FlushRequest*,
                                  v1::FlushResponse*) override {
    return Answer(context, UnsupportedField("Flush", ""));
  }

 private:
  const ServingState* const state_;
  StatsWatchers* const watchers_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCacheService(const ServingState* state,
                                                StatsWatchers* watchers) {
  return std::make_unique<CacheService>(state, watchers);
}

}  // namespace strata::rpc
