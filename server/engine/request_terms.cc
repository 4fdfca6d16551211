#include "server/engine/request_terms.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "cache/layout/geometry.h"
#include "server/engine/policy_resolver.h"
#include "server/engine/stop_matcher.h"
#include "tiering/tiered_cache.h"

namespace strata {
namespace {

absl::Status CheckIds(const char* field, absl::Span<const int32_t> ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "] is ", ids[i],
                                                   ", the vocabulary has ", vocab_size, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const Request& request, const TermsContext& context) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("prompt has no tokens");
  if (request.prompt.size() >= static_cast<size_t>(context.context_max)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kContextLengthExceeded, ": prompt ", request.prompt.size(), " tokens, limit ",
                     context.context_max, ", of which at least one is to be generated"));
  }
  return CheckIds("prompt", request.prompt, context.vocab_size);
}

absl::Status CheckStop(const Request& request, const TermsContext& context) {
  const StopCriteria& stop = request.stop;
  if (stop.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", stop.max_tokens, ", must be at least 1"));
  }
  if (stop.min_tokens < 0 || stop.min_tokens > stop.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_tokens is ", stop.min_tokens,
                                                   ", must be from 0 to max_tokens (",
                                                   stop.max_tokens, ")"));
  }
  STRATA_RETURN_IF_ERROR(StopSet::Check(stop.stop));
  if (!stop.stop.empty() && !request.detokenize) {
    return absl::InvalidArgumentError("stop strings need detokenize, which is false");
  }
  if (stop.time_limit.has_value() && stop.time_limit->count() <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("time_limit is ", stop.time_limit->count(), " ns, must be positive"));
  }
  return CheckIds("stop_token_ids", stop.stop_token_ids, context.vocab_size);
}

std::vector<int32_t> Suppressed(const StopCriteria& stop, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (stop.min_tokens == 0) return ids;
  ids = stop.stop_token_ids;
  if (!stop.ignore_eos) {
    ids.insert(ids.end(), tokenizer.eog_ids().begin(), tokenizer.eog_ids().end());
  }
  return ids;
}

}  // namespace

absl::StatusOr<RequestTerms> SettleTerms(const Request& request, const TermsContext& context) {
  STRATA_RETURN_IF_ERROR(CheckPrompt(request, context));
  STRATA_RETURN_IF_ERROR(CheckStop(request, context));
  STRATA_RETURN_IF_ERROR(request.sampling.Validate(context.vocab_size));
  if (request.stream_interval < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("stream_interval is ", request.stream_interval, ", must be at least 1"));
  }
  RequestTerms terms;
  STRATA_ASSIGN_OR_RETURN(terms.policy,
                          ResolvePolicy(request.policy, *context.tiers, context.default_policy));
  const int32_t prompt = static_cast<int32_t>(request.prompt.size());
  const int32_t room = context.context_max - prompt;
  terms.max_tokens = std::min(request.stop.max_tokens, room);
  terms.context_bound = room < request.stop.max_tokens;
  terms.stored_tokens = prompt + terms.max_tokens - 1;
  terms.suppressed = Suppressed(request.stop, *context.tokenizer);
  return terms;
}

absl::Status CheckCapacity(const RequestTerms& terms, const TierOptions& tiers,
                           const CacheSnapshot& cache) {
  const SlotNeed need =
      WorstCase(terms.policy, terms.stored_tokens, tiers.piece_tokens / kBlockTokens);
  const std::array<size_t, kTierCount> block_bytes = TieredCache::BlockBytes(tiers);
  bool fits = true;
  std::string figures;
  for (int tier = 0; tier < kTierCount; ++tier) {
    const uint64_t bytes = static_cast<uint64_t>(need.blocks[tier]) * block_bytes[tier];
    const uint64_t capacity = cache.tiers[tier].capacity_bytes;
    fits = fits && bytes <= capacity;
    absl::StrAppend(&figures, tier == 0 ? "" : ", ", TierName(static_cast<Tier>(tier)), " ", bytes,
                    " of ", capacity);
  }
  if (fits) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(kKvCapacity, ": ", terms.stored_tokens,
                                                   " tokens need more than an empty cache holds; "
                                                   "bytes needed of capacity: ",
                                                   figures));
}

}  // namespace strata
