#include "tiering/tier_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cache/block_directory.h"
#include "cache/slot_allocator.h"
#include "tiering/cold_format.h"

namespace strata {
namespace {

constexpr int32_t kWriteBuffers = 4;
// Bookkeeping of one DRAM slot: its block, its id, its entry in a table, and the page views and
// targets of a step.
constexpr size_t kBytesPerSlot =
    BlockDirectory::kBytesPerBlock + SlotAllocator<SlotId>::kBytesPerSlot + sizeof(BlockId) + 96;

int32_t SlotsFor(size_t budget, size_t bytes_each) {
  constexpr size_t kMost = std::numeric_limits<int32_t>::max() / 8;
  return static_cast<int32_t>(std::min(budget / bytes_each, kMost));
}

// Bookkeeping in DRAM of one record.
size_t BytesPerRecord(const RecordLayout& record) {
  return kBytesPerSlot + 32 + record.groups() * (sizeof(uint32_t) + sizeof(UnitId));
}

size_t WriteBufferBytes(const RecordLayout& record) {
  return kWriteBuffers * (record.bytes() + cold_format::kSectorBytes);
}

// Staging beside its units: write buffers and the bookkeeping of records.
size_t StagingOverhead(const TierPlan& plan) {
  return WriteBufferBytes(plan.record) +
         plan.slots[IndexOf(Tier::kCold)] * BytesPerRecord(plan.record);
}

size_t BytesPerUnit(const RecordLayout& record) { return record.largest_group_bytes() + 256; }

}  // namespace

std::vector<PageFormat> PageFormats(const KvGeometry& geometry,
                                    const std::vector<TensorKinds>& kinds) {
  std::vector<PageFormat> formats;
  formats.reserve(kinds.size());
  for (const TensorKinds& layer : kinds) {
    formats.push_back({layer.k, layer.v, geometry.kv_heads, geometry.head_dim});
  }
  return formats;
}

TierPlan TierPlan::Make(const TierOptions& options) {
  const std::vector<PageFormat> warm = PageFormats(options.geometry, options.formats.warm);
  TierPlan plan;
  plan.hot =
      BlockLayout(PageFormats(options.geometry, std::vector<TensorKinds>(options.geometry.layers)));
  plan.warm = BlockLayout(warm);
  plan.record =
      RecordLayout(PageFormats(options.geometry, options.formats.cold), options.cold_unit_bytes);
  plan.piece_blocks = options.piece_tokens / kBlockTokens;
  plan.slots[0] = SlotsFor(options.hot_bytes, plan.hot.bytes() + kBytesPerSlot);
  plan.slots[1] = SlotsFor(options.warm_bytes, plan.warm.bytes() + kBytesPerSlot);
  if (options.cold_bytes == 0) return plan;
  plan.slots[2] = cold_format::RecordsFor(options.cold_bytes, plan.record.bytes());
  plan.write_buffers = kWriteBuffers;
  const size_t overhead = StagingOverhead(plan);
  if (options.staging_bytes > overhead) {
    plan.staging_units = SlotsFor(options.staging_bytes - overhead, BytesPerUnit(plan.record));
  }
  return plan;
}

PositionalPolicy TierPlan::DefaultPolicy(const TierOptions& options) const {
  PositionalPolicy policy;
  const int32_t blocks = BlocksForTokens(options.max_context);
  const int32_t hot_share = slots[0] / options.max_sequences;
  if (hot_share >= blocks || (slots[1] == 0 && slots[2] == 0)) return policy;
  // At least a piece: what leaves the window at the next boundary is then always sealed already.
  policy.hot_blocks = std::max(hot_share - policy.sink_blocks - piece_blocks, piece_blocks);
  const int32_t warm_share = slots[1] / options.max_sequences;
  policy.warm_blocks = PositionalPolicy::kUnlimited;
  const int32_t all_warm = WorstCase(policy, options.max_context, piece_blocks).blocks[1];
  if (warm_share >= all_warm || slots[2] == 0) return policy;
  policy.warm_blocks = std::max(warm_share - 2 * piece_blocks, 0);
  return policy;
}

absl::Status TierPlan::CheckMinimum(const TierOptions& options) const {
  const int32_t blocks = BlocksForTokens(options.max_context);
  const int32_t hot_needed = std::min(blocks, PositionalPolicy{}.sink_blocks + 2 * piece_blocks);
  if (slots[0] < hot_needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "hot_bytes of ", options.hot_bytes, " hold ", slots[0], " blocks of ", hot.bytes(),
        " bytes; one sequence needs ", hot_needed, " (", hot_needed * (hot.bytes() + kBytesPerSlot),
        " bytes): its first block and two pieces of ", options.piece_tokens, " tokens"));
  }
  if (options.cold_bytes == 0) return absl::OkStatus();
  if (slots[2] == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cold_bytes of ", options.cold_bytes, " hold no record of ", record.bytes(),
                     " bytes; at least ", cold_format::FileBytes(1, record.bytes())));
  }
  if (slots[1] < 2 * piece_blocks) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "warm_bytes of ", options.warm_bytes, " hold ", slots[1], " blocks of ", warm.bytes(),
        " bytes; on their way to disk the blocks of two pieces pass through it: ", 2 * piece_blocks,
        " blocks, ", 2 * piece_blocks * (warm.bytes() + kBytesPerSlot), " bytes"));
  }
  const SlotNeed worst = WorstCase(DefaultPolicy(options), options.max_context, piece_blocks);
  const int64_t units = StagingNeed(std::min(worst.blocks[2], slots[2]));
  if (staging_units < std::max<int64_t>(units, 1)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "staging_bytes of ", options.staging_bytes, " hold ", staging_units, " units of ",
        record.largest_group_bytes(), " bytes; a sequence of ", options.max_context,
        " tokens streams ", units, " at a time: at least ",
        StagingOverhead(*this) + std::max<int64_t>(units, 1) * BytesPerUnit(record), " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace strata
