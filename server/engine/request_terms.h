#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer.h"
#include "server/engine/request.h"
#include "tiering/kv_policy.h"
#include "tiering/tier_options.h"

namespace strata {

// What requests are held against; borrowed, immutable while the engine lives.
struct TermsContext {
  const Tokenizer* tokenizer = nullptr;
  int32_t vocab_size = 0;
  int32_t context_max = 0;  // tokens a sequence, prompt and generated
  const TierOptions* tiers = nullptr;
  PositionalPolicy default_policy;
};

// What is settled about a request before it runs.
struct RequestTerms {
  PositionalPolicy policy;
  int32_t max_tokens = 0;      // generated at most; what was asked, or what the context leaves
  bool context_bound = false;  // the context leaves less than was asked
  int32_t stored_tokens = 0;   // in the cache at most: the token sampled last is never fed back
  std::vector<int32_t> suppressed;  // not drawn before min_tokens
};

// InvalidArgument naming the field, its value and its limit.
absl::StatusOr<RequestTerms> SettleTerms(const Request& request, const TermsContext& context);

// ResourceExhausted, with needed and total bytes a tier, when the worst case of these terms exceeds
// a tier that is empty; such a request is refused at once instead of waiting for ever.
absl::Status CheckCapacity(const RequestTerms& terms, const TierOptions& tiers,
                           const CacheSnapshot& cache);

}  // namespace strata
