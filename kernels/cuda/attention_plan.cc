#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace strata::cuda {
namespace {

// Prefill tiles are not cut further than this for the sake of more blocks: two warps up to head dim
// 128, four above.
constexpr int32_t kPrefillQueriesMin = 32;

AttentionRead ReadOf(KvKind kind) {
  switch (kind) {
    case KvKind::kF16:
      return AttentionRead::kF16;
    case KvKind::kI4:
      return AttentionRead::kI4;
    case KvKind::kI2:
      return AttentionRead::kI2;
  }
  return AttentionRead::kF16;
}

AttentionLayout LayoutOf(const PageRun& run) {
  const PageFormat& format = run.stored;
  return {static_cast<uint32_t>(format.KHeadBytes()),
          static_cast<uint32_t>(format.VHead(0)),
          static_cast<uint32_t>(format.VHeadBytes()),
          static_cast<uint32_t>(format.KRefine(0)),
          static_cast<uint32_t>(format.VRefine(0)),
          static_cast<uint32_t>(format.PlaneBytes()),
          ReadOf(run.read_k),
          ReadOf(run.read_v),
          {0, 0}};
}

bool SameLayout(const AttentionLayout& a, const AttentionLayout& b) {
  return a.k_stride == b.k_stride && a.v_first == b.v_first && a.v_stride == b.v_stride &&
         a.k_lo_first == b.k_lo_first && a.v_lo_first == b.v_lo_first &&
         a.lo_stride == b.lo_stride && a.k == b.k && a.v == b.v;
}

int32_t LayoutIndex(const PageRun& run, std::vector<AttentionLayout>* layouts) {
  const AttentionLayout layout = LayoutOf(run);
  const auto found = std::find_if(layouts->begin(), layouts->end(),
                                  [&](const auto& other) { return SameLayout(layout, other); });
  const int32_t index = static_cast<int32_t>(found - layouts->begin());
  if (found == layouts->end()) layouts->push_back(layout);
  STRATA_CHECK(layouts->size() <= kAttentionLayoutsMax);
  return index;
}

int32_t BlockOf(const AttentionPage& page) { return page.position / kBlockTokens; }
int32_t ShareOf(const AttentionPage& page) { return BlockOf(page) % kAttentionShares; }

// One sequence's pages, in the order of the lists, and how they are split.
struct SequencePages {
  std::vector<AttentionPage> pages;
  struct Split {
    int32_t first_page;
    int32_t page_count;
  };
  std::vector<Split> splits;
};

// The pages of `sequence` that any of its rows sees, split by split, in a split share by share.
void CollectPages(const AttentionShape& shape, const AttentionSequence& sequence,
                  std::vector<AttentionLayout>* layouts, SequencePages* out) {
  out->pages.clear();
  out->splits.clear();
  const int32_t last = sequence.first_position + sequence.rows - 1;
  int32_t section = -1;
  for (const PageRun& run : sequence.runs) {
    STRATA_CHECK(run.stored.kv_heads == shape.kv_heads && run.stored.head_dim == shape.head_dim);
    STRATA_CHECK(ReadableAs(run.stored.k, run.read_k) && ReadableAs(run.stored.v, run.read_v));
    STRATA_CHECK(run.tokens <= kBlockTokens * run.page_count);
    const bool refined = run.read_k == KvKind::kI4 || run.read_v == KvKind::kI4;
    const int32_t layout = LayoutIndex(run, layouts);
    for (int32_t i = 0; i < BlocksForTokens(run.tokens); ++i) {
      const KvPageView& view = run.pages[i];
      const int32_t valid = run.tokens - i * kBlockTokens;
      const uint64_t in_page = valid >= kBlockTokens ? ~uint64_t{0} : (uint64_t{1} << valid) - 1;
      const AttentionPage page{view.base, view.refine, in_page & ~view.skip,
                               (run.first_block + i) * kBlockTokens, layout};
      if (page.position > last || page.visible == 0) continue;
      STRATA_CHECK(!refined || view.refine != nullptr);
      const int32_t here = BlockOf(page) / kAttentionSplitBlocks;
      if (here != section) out->splits.push_back({static_cast<int32_t>(out->pages.size()), 0});
      section = here;
      STRATA_CHECK(++out->splits.back().page_count <= kAttentionSplitPagesMax);
      out->pages.push_back(page);
    }
  }
  for (const SequencePages::Split& split : out->splits) {
    const auto first = out->pages.begin() + split.first_page;
    std::stable_sort(first, first + split.page_count,
                     [](const auto& a, const auto& b) { return ShareOf(a) < ShareOf(b); });
  }
}

// The part of `split` that rows up to position `last` see; false when they see nothing of it.
bool CutSplit(const SequencePages& sequence, const SequencePages::Split& split, int32_t offset,
              int32_t last, AttentionSplit* out) {
  *out = {offset + split.first_page, {}, {}};
  bool any = false;
  for (int32_t i = 0; i < split.page_count; ++i) {
    const AttentionPage& page = sequence.pages[split.first_page + i];
    // A share's pages are in the order of positions, so those that are not seen are its last ones.
    if (page.position > last) continue;
    const int32_t share = ShareOf(page);
    if (out->count[share]++ == 0) out->begin[share] = static_cast<uint8_t>(i);
    any = true;
  }
  return any;
}

// Writes the lists of one call.
class Planner {
 public:
  Planner(const AttentionShape& shape, const AttentionLimits& limits, AttentionLists* lists)
      : shape_(shape),
        group_(shape.query_heads / shape.kv_heads),
        device_(limits.device),
        prefill_queries_(limits.device.prefill_queries),
        spare_states_(limits.states),
        lists_(*lists) {}

  void Plan(absl::Span<const AttentionSequence> sequences);

 private:
  struct Tile {
    const AttentionSequence* sequence;
    int32_t row;  // of the sequence
    int32_t first_query;
    int32_t queries;
  };

  bool IsPrefill(const AttentionSequence& sequence) const {
    return prefill_queries_ > 0 && int64_t{1} * sequence.rows * group_ >= kAttentionPrefillMin;
  }
  int64_t PrefillBlocks(absl::Span<const AttentionSequence> sequences, bool apart) const;
  void ChoosePrefillTiles(absl::Span<const AttentionSequence> sequences);
  template <class Body>
  void ForEachTile(const AttentionSequence& sequence, const Body& body) const;
  void AddSequence(const AttentionSequence& sequence);
  void AddTile(const Tile& tile, int32_t first_page, std::vector<AttentionWork>* work);

  const AttentionShape& shape_;
  const int32_t group_;
  const AttentionDevice device_;
  int32_t prefill_queries_;  // of a tile
  int64_t spare_states_;     // beyond one a query
  bool many_tiles_ = false;  // of prefill: as many as multiprocessors
  SequencePages pages_;
  std::vector<AttentionWork> prefill_work_;
  AttentionLists& lists_;
};

// As many whole rows as fit, or parts of one row where its heads alone do not.
template <class Body>
void Planner::ForEachTile(const AttentionSequence& sequence, const Body& body) const {
  const int32_t width = IsPrefill(sequence) ? prefill_queries_ : kAttentionDecodeQueries;
  const int32_t rows = std::max(1, width / group_);
  for (int32_t row = 0; row < sequence.rows; row += rows) {
    const int32_t queries = std::min(rows, sequence.rows - row) * group_;
    for (int32_t first = 0; first < queries; first += width) {
      body(Tile{&sequence, row, first, std::min(width, queries - first)});
    }
  }
}

// Splits that a sequence may have, those without pages included.
int64_t SplitsMax(const AttentionSequence& sequence) {
  const int32_t last = sequence.first_position + sequence.rows - 1;
  return last / (kAttentionSplitBlocks * kBlockTokens) + 1;
}

// Blocks of prefill, with each split in one of its own or with a tile's splits in one.
int64_t Planner::PrefillBlocks(absl::Span<const AttentionSequence> sequences, bool apart) const {
  int64_t blocks = 0;
  for (const AttentionSequence& sequence : sequences) {
    if (!IsPrefill(sequence)) continue;
    const int64_t of_tile = shape_.kv_heads * (apart ? SplitsMax(sequence) : 1);
    ForEachTile(sequence, [&](const Tile&) { blocks += of_tile; });
  }
  return blocks;
}

// The widest tiles of which there is one a multiprocessor: a page is read once a tile, but a block
// is no faster for what it leaves idle elsewhere.
void Planner::ChoosePrefillTiles(absl::Span<const AttentionSequence> sequences) {
  int64_t more_states = 0;
  for (const AttentionSequence& sequence : sequences) {
    if (!IsPrefill(sequence)) continue;
    more_states += int64_t{1} * sequence.rows * shape_.query_heads * (SplitsMax(sequence) - 1);
  }
  const bool apart = more_states <= spare_states_;
  while (prefill_queries_ >= 2 * kPrefillQueriesMin &&
         PrefillBlocks(sequences, apart) < device_.multiprocessors) {
    prefill_queries_ /= 2;
  }
  many_tiles_ = PrefillBlocks(sequences, false) >= device_.multiprocessors;
}

void Planner::AddTile(const Tile& tile, int32_t first_page, std::vector<AttentionWork>* work) {
  const AttentionSequence& sequence = *tile.sequence;
  const int32_t last =
      sequence.first_position + tile.row + (tile.first_query + tile.queries - 1) / group_;
  const int32_t first_split = static_cast<int32_t>(lists_.splits.size());
  for (const SequencePages::Split& split : pages_.splits) {
    AttentionSplit cut;
    if (CutSplit(pages_, split, first_page, last, &cut)) lists_.splits.push_back(cut);
  }
  const int32_t splits = static_cast<int32_t>(lists_.splits.size()) - first_split;
  const int32_t states = tile.queries * shape_.kv_heads;
  const int64_t more = int64_t{1} * states * (splits - 1);
  const bool apart = more <= spare_states_ && !(IsPrefill(sequence) && many_tiles_);
  if (apart) spare_states_ -= std::max<int64_t>(more, 0);
  const int32_t slots = apart ? splits : std::min(splits, 1);
  AttentionWork item{sequence.first_row + tile.row,
                     sequence.first_position + tile.row,
                     tile.first_query,
                     tile.queries,
                     lists_.state_count,
                     first_split,
                     apart ? 1 : splits};
  lists_.tiles.push_back({item.first_row, item.first_query, item.queries, item.first_state, slots});
  for (int32_t s = 0; s < slots; ++s) {
    work->push_back(item);
    item.first_state += states;
    ++item.first_split;
  }
  lists_.state_count += slots * states;
}

void Planner::AddSequence(const AttentionSequence& sequence) {
  CollectPages(shape_, sequence, &lists_.layouts, &pages_);
  const int32_t first_page = static_cast<int32_t>(lists_.pages.size());
  lists_.pages.insert(lists_.pages.end(), pages_.pages.begin(), pages_.pages.end());
  std::vector<AttentionWork>* work = IsPrefill(sequence) ? &prefill_work_ : &lists_.work;
  ForEachTile(sequence, [&](const Tile& tile) { AddTile(tile, first_page, work); });
}

void Planner::Plan(absl::Span<const AttentionSequence> sequences) {
  lists_.pages.clear();
  lists_.splits.clear();
  lists_.work.clear();
  lists_.tiles.clear();
  lists_.layouts.clear();
  lists_.state_count = 0;
  for (const AttentionSequence& sequence : sequences) {
    spare_states_ -= AttentionStatesMin(sequence.rows, shape_.query_heads);
  }
  STRATA_CHECK(spare_states_ >= 0);
  ChoosePrefillTiles(sequences);
  for (const AttentionSequence& sequence : sequences) AddSequence(sequence);
  lists_.decode_count = static_cast<int32_t>(lists_.work.size());
  lists_.prefill_queries = prefill_queries_;
  // Later rows see more: the longest work first, so that what ends a launch is short.
  lists_.work.insert(lists_.work.end(), prefill_work_.rbegin(), prefill_work_.rend());
}

}  // namespace

void PlanAttention(const AttentionShape& shape, absl::Span<const AttentionSequence> sequences,
                   const AttentionLimits& limits, AttentionLists* lists) {
  STRATA_CHECK(shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0);
  STRATA_CHECK(shape.head_dim >= 16 && shape.head_dim <= 256 && shape.head_dim % 16 == 0);
  STRATA_CHECK(limits.states <= INT32_MAX && limits.device.prefill_queries >= 0);
  Planner(shape, limits, lists).Plan(sequences);
}

AttentionLaunch LaunchOf(const AttentionShape& shape, const AttentionLists& lists) {
  AttentionLaunch launch{};
  launch.query_heads = shape.query_heads;
  launch.kv_heads = shape.kv_heads;
  launch.head_dim = shape.head_dim;
  launch.decode_count = lists.decode_count;
  launch.prefill_count = static_cast<int32_t>(lists.work.size()) - lists.decode_count;
  launch.prefill_queries = lists.prefill_queries;
  launch.state_count = lists.state_count;
  std::copy(lists.layouts.begin(), lists.layouts.end(), launch.layouts);
  return launch;
}

AttentionMerge MergeOf(const AttentionShape& shape, const AttentionLists& lists) {
  AttentionMerge merge{};
  merge.query_heads = shape.query_heads;
  merge.kv_heads = shape.kv_heads;
  merge.head_dim = shape.head_dim;
  merge.tile_count = static_cast<int32_t>(lists.tiles.size());
  for (const AttentionTile& tile : lists.tiles) {
    merge.queries_max = std::max(merge.queries_max, tile.queries);
  }
  merge.state_count = lists.state_count;
  return merge;
}

}  // namespace strata::cuda
