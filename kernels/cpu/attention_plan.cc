#include "kernels/cpu/attention_plan.h"

#include <algorithm>

#include "base/check.h"

namespace strata {
namespace {

// Items a thread to aim for. An item's first split is read without having been fetched ahead, so
// more of them cost a decode step more than they even out.
constexpr int32_t kItemsPerThread = 2;
// Splits of one item at most, so that a short tail of items cannot leave threads idle for long.
constexpr int32_t kItemSplitsMax = 16;

// Queries of one KV head up to which reading its pages takes longer than the arithmetic.
constexpr int32_t kFewQueries = 16;

CodeBits CodeBitsOf(KvKind kind) {
  switch (kind) {
    case KvKind::kF16:
      return CodeBits::kF16;
    case KvKind::kI4:
      return CodeBits::kI4;
    case KvKind::kI2:
      return CodeBits::kI2;
  }
  return CodeBits::kF16;
}

const uint8_t* Bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

int32_t LastPosition(const AttentionUnit& unit) {
  return unit.sequence->first_position + unit.first_row + unit.rows - 1;
}

}  // namespace

int32_t AttentionPlan::PositionOf(const Page& page) const {
  return (runs_[page.run].run->first_block + page.index) * kBlockTokens;
}

void AttentionPlan::AddRuns(const AttentionShape& shape, const AttentionSequence& sequence) {
  const int32_t last = sequence.first_position + sequence.rows - 1;
  int32_t section = -1;  // block / kSplitBlocks of the split being filled
  for (const PageRun& run : sequence.runs) {
    const PageFormat& format = run.stored;
    STRATA_CHECK(format.kv_heads == shape.kv_heads && format.head_dim == shape.head_dim);
    STRATA_CHECK(ReadableAs(format.k, run.read_k) && ReadableAs(format.v, run.read_v));
    STRATA_CHECK(run.tokens <= kBlockTokens * run.page_count);
    const int32_t run_index = static_cast<int32_t>(runs_.size());
    runs_.push_back({&run, format.KHeadBytes(), format.VHead(0), format.VHeadBytes(),
                     format.KRefine(0), format.VRefine(0), format.PlaneBytes(),
                     CodeBitsOf(run.read_k), CodeBitsOf(run.read_v), CostOf(run)});
    const int32_t pages = std::min(run.page_count, BlocksForTokens(run.tokens));
    for (int32_t i = 0; i < pages; ++i) {
      const int32_t block = run.first_block + i;
      if (block * kBlockTokens > last) break;
      const bool open = section == block / kSplitBlocks && !splits_.empty() &&
                        splits_.back().page_count < kSplitPagesMax;
      if (!open) splits_.push_back({static_cast<int32_t>(pages_.size()), 0, 0});
      section = block / kSplitBlocks;
      pages_.push_back({run_index, i});
      ++splits_.back().page_count;
      splits_.back().cost += runs_.back().page_cost;
    }
  }
}

void AttentionPlan::AddUnits(const AttentionShape& shape, const AttentionSequence& sequence,
                             int32_t first_split) {
  const int32_t group = shape.query_heads / shape.kv_heads;
  const int32_t tile = std::max(1, kTileQueries / group);
  for (int32_t row = 0; row < sequence.rows; row += tile) {
    AttentionUnit unit;
    unit.sequence = &sequence;
    unit.first_row = row;
    unit.rows = std::min(tile, sequence.rows - row);
    unit.first_split = first_split;
    int32_t end = static_cast<int32_t>(splits_.size());
    const auto hidden = [&](const Split& split) {
      return std::all_of(&pages_[split.first_page], &pages_[split.first_page] + split.page_count,
                         [&](const Page& page) { return PositionOf(page) > LastPosition(unit); });
    };
    while (end > first_split && hidden(splits_[end - 1])) --end;
    unit.split_count = end - first_split;
    if (unit.split_count == 0) continue;
    for (unit.kv_head = 0; unit.kv_head < shape.kv_heads; ++unit.kv_head) units_.push_back(unit);
  }
}

int32_t AttentionPlan::CostOf(const PageRun& run) const {
  const auto tensor = [this](KvKind kind) {
    return kind == KvKind::kF16 ? costs_.f16 : kind == KvKind::kI4 ? costs_.i4 : costs_.i2;
  };
  return tensor(run.read_k) + tensor(run.read_v);
}

int64_t AttentionPlan::CostOf(const AttentionUnit& unit) const {
  int64_t cost = 0;
  for (int32_t s = 0; s < unit.split_count; ++s) cost += splits_[unit.first_split + s].cost;
  return cost;
}

// The KV heads of one page lie next to each other: read together where that leaves enough items,
// and where there are so few queries that reading is what takes the time.
void AttentionPlan::AddItems(const AttentionShape& shape, int threads) {
  const int64_t unit_count = static_cast<int64_t>(units_.size());
  const int64_t wanted = int64_t{kItemsPerThread} * threads;
  int64_t tile_splits = 0;
  int64_t tile_costs = 0;
  for (int64_t u = 0; u < unit_count; u += shape.kv_heads) {
    tile_splits += units_[u].split_count;
    tile_costs += CostOf(units_[u]);
  }
  const bool whole = threads == 1 || unit_count >= wanted;
  const bool enough = threads == 1 || tile_splits >= wanted / 2;
  const int64_t item_cost =
      std::max<int64_t>((enough ? tile_costs : tile_costs * shape.kv_heads) / wanted, 1);
  if (pending_size_ < units_.size()) {
    pending_size_ = units_.size();
    pending_ = std::make_unique<std::atomic<int32_t>[]>(pending_size_);
  }
  const int32_t group = shape.query_heads / shape.kv_heads;
  for (int64_t u = 0; u < unit_count; u += shape.kv_heads) {
    const AttentionUnit& unit = units_[u];
    const bool few = unit.rows * group <= kFewQueries;
    const int64_t for_cost = (CostOf(unit) + item_cost / 2) / item_cost;
    const int64_t for_length = (unit.split_count + kItemSplitsMax - 1) / kItemSplitsMax;
    const int64_t pieces = whole ? 1 : std::max({for_cost, for_length, int64_t{1}});
    AddItemsOfTile(shape, static_cast<int32_t>(u), pieces, enough && few);
  }
  const auto costs_more = [](const AttentionItem& a, const AttentionItem& b) {
    return a.cost > b.cost;
  };
  std::stable_sort(items_.begin(), items_.end(), costs_more);
}

void AttentionPlan::AddItemsOfTile(const AttentionShape& shape, int32_t first_unit, int64_t pieces,
                                   bool heads_together) {
  const int32_t splits = units_[first_unit].split_count;
  const int64_t total = CostOf(units_[first_unit]);
  for (int32_t u = first_unit; u < first_unit + shape.kv_heads; ++u) {
    AttentionUnit& unit = units_[u];
    unit.slotted = pieces > 1;
    unit.first_slot = slot_floats_;
    if (!unit.slotted) continue;
    pending_[u].store(splits, std::memory_order_relaxed);
    const int32_t queries = unit.rows * (shape.query_heads / shape.kv_heads);
    slot_floats_ += StateFloats(queries, shape.head_dim) * splits;
  }
  const int32_t heads = heads_together ? shape.kv_heads : 1;
  int64_t before = 0;  // cost of the splits so far
  for (int32_t begin = 0, s = 0; begin < splits; begin = s) {
    // The piece that a split belongs to is the one its middle falls in.
    const auto piece_of = [&](int64_t cost) { return (before + cost / 2) * pieces / total; };
    const auto cost_at = [&](int32_t split) {
      return splits_[units_[first_unit].first_split + split].cost;
    };
    const int64_t piece = piece_of(cost_at(begin));
    int64_t cost = 0;
    for (; s < splits && piece_of(cost_at(s)) == piece; ++s) {
      cost += cost_at(s);
      before += cost_at(s);
    }
    for (int32_t h = 0; h < shape.kv_heads; h += heads) {
      items_.push_back({first_unit + h, heads, begin, s, cost * heads});
    }
  }
}

void AttentionPlan::Build(const AttentionShape& shape,
                          absl::Span<const AttentionSequence> sequences, int threads) {
  runs_.clear();
  pages_.clear();
  splits_.clear();
  units_.clear();
  items_.clear();
  slot_floats_ = 0;
  for (const AttentionSequence& sequence : sequences) {
    const int32_t first_split = static_cast<int32_t>(splits_.size());
    AddRuns(shape, sequence);
    AddUnits(shape, sequence, first_split);
  }
  AddItems(shape, threads);
}

bool AttentionPlan::FinishSplits(const AttentionItem& item, int32_t unit) {
  const int32_t done = item.end_split - item.first_split;
  // Releases this item's slots and acquires everybody's for the last one.
  return pending_[unit].fetch_sub(done, std::memory_order_acq_rel) == done;
}

int32_t AttentionPlan::HeadPages(const AttentionUnit& unit, int32_t split, HeadPage* pages) const {
  const Split& range = splits_[unit.first_split + split];
  const int32_t last = LastPosition(unit);
  int32_t count = 0;
  for (int32_t i = range.first_page; i < range.first_page + range.page_count; ++i) {
    const Run& run = runs_[pages_[i].run];
    const KvPageView& view = run.run->pages[pages_[i].index];
    const int32_t position = PositionOf(pages_[i]);
    const int32_t valid = run.run->tokens - pages_[i].index * kBlockTokens;
    const uint64_t in_page = valid >= kBlockTokens ? ~uint64_t{0} : (uint64_t{1} << valid) - 1;
    if (position > last || (in_page & ~view.skip) == 0) continue;
    HeadPage& page = pages[count++];
    page.k = Bytes(view.base + run.k_stride * unit.kv_head);
    page.v = Bytes(view.base + run.v_first + run.v_stride * unit.kv_head);
    const size_t lo = run.lo_stride * unit.kv_head;
    STRATA_CHECK(view.refine != nullptr ||
                 (run.k_bits != CodeBits::kI4 && run.v_bits != CodeBits::kI4));
    // Never null, so that kernels may compute addresses that they do not read.
    page.k_lo = run.k_bits == CodeBits::kI4 ? Bytes(view.refine + run.k_lo_first + lo) : page.k;
    page.v_lo = run.v_bits == CodeBits::kI4 ? Bytes(view.refine + run.v_lo_first + lo) : page.v;
    page.visible = in_page & ~view.skip;
    page.position = position;
    page.k_bits = run.k_bits;
    page.v_bits = run.v_bits;
  }
  return count;
}

}  // namespace strata
