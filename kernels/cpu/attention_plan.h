#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cpu/attention_kernels.h"

namespace strata {

// Rows of one sequence that go through one KV head's pages together.
struct AttentionUnit {
  const AttentionSequence* sequence = nullptr;
  int32_t first_row = 0;  // of the sequence
  int32_t rows = 0;
  int32_t kv_head = 0;
  int32_t first_split = 0;  // in the plan
  int32_t split_count = 0;  // splits that any of the rows sees
  bool slotted = false;     // several items: every split's state goes to a slot
  size_t first_slot = 0;    // floats
};

// Work for one thread: a stretch of the splits of some units of the same rows (KV heads that follow
// each other), all heads of a split before the next split.
struct AttentionItem {
  int32_t first_unit = 0;
  int32_t unit_count = 0;
  int32_t first_split = 0;  // of each unit
  int32_t end_split = 0;
  int64_t cost = 0;
};

// How one Attend call is cut into items. Owned by its backend and rebuilt every call; buffers only
// grow. Built by the engine thread, then read by all; FinishSplits may be called by all.
//
// Invariants. 1: a split is cut where block / kSplitBlocks changes (or at kSplitPagesMax pages),
// so which pages share a split depends on the sequence's runs alone. 2: how units are cut into
// items may depend on threads and costs, because splits are merged one by one, in order, anyway.
class AttentionPlan {
 public:
  static constexpr int32_t kSplitBlocks = 8;
  // Queries that go through a page together in a prefill: enough to make reading the page free,
  // few enough for their scores to stay in the L2 cache.
  static constexpr int32_t kTileQueries = 48;

  // `costs` are the kernels' that will do the work.
  explicit AttentionPlan(const PageCosts& costs) : costs_(costs) {}

  // CHECKs that the runs fit the shape. The spans in `sequences` must outlive the use of the plan.
  void Build(const AttentionShape& shape, absl::Span<const AttentionSequence> sequences,
             int threads);

  const std::vector<AttentionUnit>& units() const { return units_; }
  // The most expensive first, so that threads which take one after the other end together.
  const std::vector<AttentionItem>& items() const { return items_; }
  size_t slot_floats() const { return slot_floats_; }

  // Floats of the states of so many queries: o, m and l.
  static size_t StateFloats(int32_t queries, int32_t head_dim) {
    return (size_t{1} * queries * (head_dim + 2) + 15) / 16 * 16;
  }

  // Writes the pages of one of the unit's splits that any of its rows sees; returns their count.
  int32_t HeadPages(const AttentionUnit& unit, int32_t split, HeadPage* pages) const;

  // Counts the item's splits of one of its units as done; true for the call that finishes the unit.
  bool FinishSplits(const AttentionItem& item, int32_t unit);

 private:
  // A run with the offsets of its regions worked out.
  struct Run {
    const PageRun* run;
    size_t k_stride, v_first, v_stride, k_lo_first, v_lo_first, lo_stride;
    CodeBits k_bits, v_bits;
    int32_t page_cost;
  };
  struct Page {
    int32_t run;
    int32_t index;
  };
  struct Split {
    int32_t first_page;
    int32_t page_count;
    int64_t cost;
  };

  void AddRuns(const AttentionShape& shape, const AttentionSequence& sequence);
  void AddUnits(const AttentionShape& shape, const AttentionSequence& sequence,
                int32_t first_split);
  void AddItems(const AttentionShape& shape, int threads);
  // Cuts the units of one tile, one a KV head, into `pieces` of about equal cost.
  void AddItemsOfTile(const AttentionShape& shape, int32_t first_unit, int64_t pieces,
                      bool heads_together);
  // What the splits of a unit cost a few queries.
  int64_t CostOf(const AttentionUnit& unit) const;
  int32_t CostOf(const PageRun& run) const;
  int32_t PositionOf(const Page& page) const;

  const PageCosts costs_;
  std::vector<Run> runs_;
  std::vector<Page> pages_;
  std::vector<Split> splits_;
  std::vector<AttentionUnit> units_;
  std::vector<AttentionItem> items_;
  size_t slot_floats_ = 0;
  // Splits that each unit still waits for.
  std::unique_ptr<std::atomic<int32_t>[]> pending_;
  size_t pending_size_ = 0;
};

}  // namespace strata
