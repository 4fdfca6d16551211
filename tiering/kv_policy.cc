#include "tiering/kv_policy.h"

#include <algorithm>

#include "cache/layout/geometry.h"

namespace strata {

const char* TierName(Tier tier) {
  switch (tier) {
    case Tier::kHot:
      return "hot";
    case Tier::kWarm:
      return "warm";
    case Tier::kCold:
      return "cold";
  }
  return "unknown";
}

int32_t LastPieceBlock(int32_t tokens, int32_t piece_blocks) {
  const int32_t blocks = BlocksForTokens(tokens);
  return blocks == 0 ? 0 : (blocks - 1) / piece_blocks * piece_blocks;
}

SlotNeed WorstCase(const PositionalPolicy& policy, int32_t tokens, int32_t piece_blocks) {
  const int64_t blocks = BlocksForTokens(tokens);
  const int64_t last_piece = LastPieceBlock(tokens, piece_blocks);
  const int64_t hot_window = int64_t{policy.sink_blocks} + policy.hot_blocks;
  // Blocks that have left the hot and the warm window when the last piece begins.
  const int64_t leave_hot = std::max<int64_t>(0, last_piece - hot_window);
  const int64_t leave_warm = std::max<int64_t>(0, leave_hot - policy.warm_blocks);
  SlotNeed need;
  need.blocks[IndexOf(Tier::kHot)] =
      static_cast<int32_t>(std::min(blocks, hot_window + piece_blocks));
  // One piece's blocks are encoded ahead of the piece that needs them, and one piece's are on their
  // way to disk.
  need.blocks[IndexOf(Tier::kWarm)] = static_cast<int32_t>(
      std::min(leave_hot, int64_t{policy.warm_blocks} + 2 * int64_t{piece_blocks}));
  need.blocks[IndexOf(Tier::kCold)] = static_cast<int32_t>(leave_warm);
  return need;
}

}  // namespace strata
