#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention_launch.h"

namespace strata::cuda {

// The lists of one layer's attention (attention_launch.h says what each is). Pages keep the
// pointers of the runs: whoever launches has made the runs of addresses that the device can read.
struct AttentionLists {
  std::vector<AttentionPage> pages;
  std::vector<AttentionSplit> splits;
  std::vector<AttentionWork> work;  // decode_count items of decode tiles, then prefill's
  std::vector<AttentionTile> tiles;
  std::vector<AttentionLayout> layouts;  // at most kAttentionLayoutsMax
  int32_t decode_count = 0;
  int32_t prefill_queries = 0;  // of a prefill tile
  int32_t state_count = 0;
};

// What a plan may use.
struct AttentionLimits {
  int64_t states = 0;  // at least AttentionStatesMin of all rows
  AttentionDevice device;
};

// States that any plan for so many rows needs at least.
constexpr int64_t AttentionStatesMin(int64_t rows, int query_heads) { return rows * query_heads; }

// Cuts attention over `sequences` into tiles, splits and work. A pure function; buffers are reused.
// CHECKs that the runs fit the shape and that pages which are read as I4 have their REFINE region.
//
// Invariants. 1: a split ends where block / kAttentionSplitBlocks changes, and a page's share is
// its block's: the order of arithmetic of a query follows from its own sequence's runs, not from
// other sequences, rows or devices, nor from the limits. 2: a page with no token to see is left
// out, which changes no bits. 3: every row of every sequence is in a tile.
void PlanAttention(const AttentionShape& shape, absl::Span<const AttentionSequence> sequences,
                   const AttentionLimits& limits, AttentionLists* lists);

// What a plan knows of a call's two launches: shape, counts and layouts. The caller adds what lies
// in the device's memory: q, the lists, states and outputs.
AttentionLaunch LaunchOf(const AttentionShape& shape, const AttentionLists& lists);
AttentionMerge MergeOf(const AttentionShape& shape, const AttentionLists& lists);

// Sequences with this many queries a KV head or more are prefill's: a tile of theirs reads a page
// once for all of its warps. With fewer, most of those warps would have nothing to do, and decode
// tiles, whose four warps attend to different pages, read each page again at most three times, from
// L2.
inline constexpr int32_t kAttentionPrefillMin = 33;
// 1,024 tokens, four pages a share: what a block does once (its queries, its states) is then a
// tenth of its instructions, and at 16k tokens and eight KV heads there is still a block a
// multiprocessor.
inline constexpr int32_t kAttentionSplitBlocks = 16;
// Only runs that overlap (skip masks) have more than kAttentionSplitBlocks pages in a split.
inline constexpr int32_t kAttentionSplitPagesMax = 128;

}  // namespace strata::cuda
