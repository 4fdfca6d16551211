#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/layout/block_layout.h"
#include "cache/layout/record_layout.h"
#include "cache/layout/tier.h"
#include "tiering/kv_policy.h"
#include "tiering/tier_options.h"

namespace strata {

// What the budgets of validated options buy: layouts, slots and the bytes they take. A pure
// function of the options; looks at no machine.
struct TierPlan {
  static TierPlan Make(const TierOptions& options);

  BlockLayout hot;
  BlockLayout warm;
  RecordLayout record;

  std::array<int32_t, kTierCount> slots{};  // cold: records
  int32_t staging_units = 0;                // each of record.largest_group_bytes()
  int32_t write_buffers = 0;                // each of record.bytes() and a descriptor
  int32_t piece_blocks = 0;

  size_t SlotBytes(Tier tier) const {
    return tier == Tier::kHot ? hot.bytes() : tier == Tier::kWarm ? warm.bytes() : record.bytes();
  }
  // Groups of a block that must fit in staging together: the one in use and the next.
  int32_t UnitsPerColdBlock() const { return record.groups() < 2 ? record.groups() : 2; }
  // Staging units a sequence needs to stream `cold_blocks` blocks.
  int64_t StagingNeed(int64_t cold_blocks) const { return cold_blocks * UnitsPerColdBlock(); }

  PositionalPolicy DefaultPolicy(const TierOptions& options) const;
  // That the budgets hold at least one sequence: the hot tier its sink and two pieces, warm what
  // passes through it, staging what the longest sequence streams.
  absl::Status CheckMinimum(const TierOptions& options) const;
};

// Per-layer formats of a tier.
std::vector<PageFormat> PageFormats(const KvGeometry& geometry,
                                    const std::vector<TensorKinds>& kinds);

}  // namespace strata
