#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/serving_state.h"
#include "strata/v1/inference.pb.h"

namespace strata::rpc {

// What the server has to say of its cache and its requests now: of the engine's latest snapshot,
// without asking its thread. UNAVAILABLE while loading. Any thread.
absl::StatusOr<v1::CacheStats> ReportStats(const ServingState& state);

// The same in the standard JSON form, with the proto's own field names; while loading, an object
// with nothing but `error`. Any thread.
std::string StatsJson(const ServingState& state);

}  // namespace strata::rpc
