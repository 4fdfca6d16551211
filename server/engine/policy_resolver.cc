#include "server/engine/policy_resolver.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cache/layout/geometry.h"

namespace strata {
namespace {

constexpr int32_t kCompactWarmPieces = 2;

// The fewest bits that any tensor of a tier is read at.
int TierBits(const std::vector<TensorKinds>& layers) {
  int bits = 16;
  for (const TensorKinds& kinds : layers) bits = std::min({bits, BitsOf(kinds.k), BitsOf(kinds.v)});
  return bits;
}

absl::StatusOr<int32_t> WindowBlocks(const char* field, int32_t tokens, int32_t at_least) {
  if (tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_policy.", field, " is ", tokens, ", must not be negative"));
  }
  // Not BlocksForTokens: rounding up must not overflow.
  const int32_t blocks = tokens / kBlockTokens + (tokens % kBlockTokens != 0 ? 1 : 0);
  return std::max(blocks, at_least);
}

PositionalPolicy Exact(const PositionalPolicy& policy) {
  return {policy.sink_blocks, PositionalPolicy::kUnlimited, 0};
}

// Where everything was hot there is no warm window to keep: the rest becomes warm, not cold.
PositionalPolicy WithHotWindow(PositionalPolicy policy, int32_t blocks) {
  if (policy.hot_blocks >= PositionalPolicy::kUnlimited) {
    policy.warm_blocks = PositionalPolicy::kUnlimited;
  }
  policy.hot_blocks = blocks;
  return policy;
}

PositionalPolicy PresetPolicy(PolicyPreset preset, const PositionalPolicy& balanced,
                              int32_t piece_blocks) {
  switch (preset) {
    case PolicyPreset::kExact:
      return Exact(balanced);
    case PolicyPreset::kCompact: {
      const bool all_hot = balanced.hot_blocks >= PositionalPolicy::kUnlimited;
      const int32_t warm = kCompactWarmPieces * piece_blocks;
      return {1, std::min(balanced.hot_blocks, piece_blocks),
              all_hot ? warm : std::min(balanced.warm_blocks, warm)};
    }
    case PolicyPreset::kDefault:
    case PolicyPreset::kBalanced:
      break;
  }
  return balanced;
}

// Takes away every tier that stores fewer bits than `floor`.
absl::StatusOr<PositionalPolicy> ApplyFloor(KvKind floor, const TierOptions& tiers,
                                            PositionalPolicy policy) {
  const int warm_bits = TierBits(tiers.formats.warm);
  if (BitsOf(floor) <= std::min(warm_bits, TierBits(tiers.formats.cold))) return policy;
  if (BitsOf(floor) <= warm_bits) {
    policy.warm_blocks = PositionalPolicy::kUnlimited;
    return policy;
  }
  if (floor != KvKind::kF16) {
    return absl::InvalidArgumentError(absl::StrCat("kv_policy.min_format asks for ", BitsOf(floor),
                                                   " bits, but the warm tier stores ", warm_bits,
                                                   ": ask for F16 or for at most that"));
  }
  return Exact(policy);
}

}  // namespace

absl::StatusOr<PositionalPolicy> ResolvePolicy(const PolicyRequest& request,
                                               const TierOptions& tiers,
                                               const PositionalPolicy& default_policy) {
  const int32_t piece_blocks = std::max(1, tiers.piece_tokens / kBlockTokens);
  PositionalPolicy policy = PresetPolicy(request.preset, default_policy, piece_blocks);
  if (request.sink_tokens.has_value()) {
    STRATA_ASSIGN_OR_RETURN(policy.sink_blocks,
                            WindowBlocks("sink_tokens", *request.sink_tokens, 1));
  }
  if (request.recent_tokens.has_value()) {
    STRATA_ASSIGN_OR_RETURN(const int32_t recent,
                            WindowBlocks("recent_tokens", *request.recent_tokens, piece_blocks));
    if (request.preset != PolicyPreset::kExact) policy = WithHotWindow(policy, recent);
  }
  if (!request.allow_cold.value_or(true) || tiers.cold_bytes == 0) {
    policy.warm_blocks = PositionalPolicy::kUnlimited;
  }
  if (request.min_format.has_value()) {
    STRATA_ASSIGN_OR_RETURN(policy, ApplyFloor(*request.min_format, tiers, policy));
  }
  if (tiers.warm_bytes == 0) policy = Exact(policy);
  policy.hot_blocks = std::max(policy.hot_blocks, piece_blocks);
  // One form a meaning, so that the echoed policy can be compared.
  if (policy.hot_blocks >= PositionalPolicy::kUnlimited) policy = Exact(policy);
  return policy;
}

}  // namespace strata
