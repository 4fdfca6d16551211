#pragma once

#include <cstdint>

#include "cache/layout/tier.h"

namespace strata {

const char* TierName(Tier tier);

// Which precision the tokens of one sequence are read at, by position alone: block b, read by a
// query whose prefill piece starts at block p, is
//   hot   if b < sink_blocks or p - b <= hot_blocks (so the piece's own blocks always are),
//   warm  if p - b <= hot_blocks + warm_blocks,
//   cold  otherwise.
// Pieces start at absolute multiples of the piece size, for decoding too: the step at position t
// belongs to piece t / piece_tokens. So precision depends on nothing but positions, and a restart,
// a preemption or other traffic changes no token.
struct PositionalPolicy {
  static constexpr int32_t kUnlimited = 1 << 30;  // a window that never ends

  int32_t sink_blocks = 1;  // >= 1: without an exact sink I2 loses 30 % of perplexity
  int32_t hot_blocks = kUnlimited;
  int32_t warm_blocks = 0;

  constexpr Tier TierOf(int32_t block, int32_t piece_block) const {
    const int64_t distance = int64_t{piece_block} - block;
    if (block < sink_blocks || distance <= hot_blocks) return Tier::kHot;
    return distance <= int64_t{hot_blocks} + warm_blocks ? Tier::kWarm : Tier::kCold;
  }
  friend constexpr bool operator==(const PositionalPolicy&, const PositionalPolicy&) = default;
};

// First block of the last piece of a sequence of `tokens` tokens.
int32_t LastPieceBlock(int32_t tokens, int32_t piece_blocks);

// Slots a sequence can need at once, tier by tier: what admission reserves.
struct SlotNeed {
  int32_t blocks[kTierCount] = {0, 0, 0};
};

// The worst case over the whole life of a sequence of at most `tokens` tokens.
SlotNeed WorstCase(const PositionalPolicy& policy, int32_t tokens, int32_t piece_blocks);

}  // namespace strata
