#pragma once

#include "absl/status/statusor.h"
#include "server/engine/request.h"
#include "tiering/kv_policy.h"
#include "tiering/tier_options.h"

namespace strata {

// Turns what a request demands into the windows it gets.
//   DEFAULT, BALANCED  the server's windows
//   EXACT              everything hot
//   COMPACT            the smallest sensible windows: one sink block, one piece hot, two pieces
//                      warm (fewer where the server's own windows are smaller), the rest cold
// Then, in this order: sink_tokens and recent_tokens replace their windows, rounded up to blocks
// and raised to the least that is sound (one block; one piece, because a piece is read while its
// predecessor is still being encoded); allow_cold = false ends the cold tier; min_format takes away
// every tier that stores less. Windows end where a tier ends: without a cold tier the rest is warm,
// without a warm tier everything is hot.
// InvalidArgument, naming field, value and limit, for negative sizes and for a floor between what
// the warm tier stores and F16.
absl::StatusOr<PositionalPolicy> ResolvePolicy(const PolicyRequest& request,
                                               const TierOptions& tiers,
                                               const PositionalPolicy& default_policy);

}  // namespace strata
