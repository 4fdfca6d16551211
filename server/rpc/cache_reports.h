#pragma once

#include <string>

#include "server/engine/engine.h"
#include "strata/v1/inference.pb.h"

namespace strata::rpc {

// What the cache says of itself, as protos.

v1::Tier ToProto(Tier tier);
// Unspecified where K and V, or layers, differ.
v1::KvFormat TierFormat(const TierOptions& options, Tier tier);
// Effective windows as a client reads them: in tokens; UINT32_MAX: without end.
v1::KvPolicy ToProto(const PositionalPolicy& policy, const TierOptions& options);
v1::KvUsage ToProto(const SequenceUsage& usage, int64_t recomputed_tokens,
                    const TierOptions& options);
v1::CacheStats ToProto(const EngineSnapshot& snapshot, const TierOptions& options);

}  // namespace strata::rpc
