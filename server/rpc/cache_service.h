#pragma once

#include <memory>

#include "grpcpp/impl/service_type.h"
#include "server/rpc/serving_state.h"
#include "server/rpc/stats_watchers.h"

namespace strata::rpc {

// strata.v1.CacheService on gRPC's callback API. `state` and `watchers` outlive it.
std::unique_ptr<grpc::Service> MakeCacheService(const ServingState* state, StatsWatchers* watchers);

}  // namespace strata::rpc
