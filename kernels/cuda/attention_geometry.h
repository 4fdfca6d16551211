#pragma once

#include <cstdint>

#include "cache/layout/page_format.h"
#include "kernels/cuda/attention_launch.h"

// What the attention kernels derive from a head dim: sizes, the layout of a block's shared memory,
// and where in it the 16-byte units of a chunk go. Computed by the host once a launch.
//
// A chunk is what one step of a warp's pipeline brings in: a tile of 16 tokens of an F16 tensor
// (2 D units), or the whole page of a tensor of codes: hi plane (D units), lo plane (D units),
// parameters.
namespace strata::cuda {

// Where unit u of a chunk lies: u ^ ((u >> shift) & mask) ^ ((u >> far_shift) & far_mask). A
// permutation within groups of eight units (a row of the 32 banks) that depends on the row alone,
// so that the units which one instruction reads at a large stride lie in different banks.
struct Swizzle {
  uint32_t shift;
  uint32_t mask;
  uint32_t far_shift;
  uint32_t far_mask;
};

struct AttentionGeometry {
  int32_t dim;          // D
  int32_t lines;        // D / 16: lines of a plane in a tile of tokens, and tiles of channels
  int32_t line_groups;  // lines / 4, rounded up: what one int8 MMA pair reduces
  int32_t group;        // query heads a KV head
  int32_t v_lines;      // lines of one V group
  int32_t v_groups;
  int32_t warps;         // of a block
  uint32_t stage_bytes;  // of a ring: the largest chunk, in prefill the largest tensor

  // Byte offsets in shared memory. Of the queries: FP32 at 0, and where they are kept, as halves.
  uint32_t q_halves;
  uint32_t q_scale;
  uint32_t sums;        // m and l: two states a query
  uint32_t split_o;     // o of the state of a split that its shares are folded into
  uint32_t weights;     // decoding: a warp's, then the next warp's
  uint32_t staged;      // a warp's, then the next warp's
  uint32_t infos;       // of pages; decoding: a warp's, then the next warp's
  uint32_t bad_values;  // prefill: 8 bytes a warp
  uint32_t ring;
  uint32_t shared_bytes;

  Swizzle k_halves;
  Swizzle k_codes;
  Swizzle v_halves;
  Swizzle v_codes;
};

// Pages whose description a producer may be ahead of its consumer, at least.
inline constexpr int kPageInfos = 4;
inline constexpr int kPageInfoBytes = 16;
// Bytes of one query's weights, staged for the other operand: 64 int8, or 16 pairs of halves, at a
// stride that spreads eight queries over the banks.
inline constexpr int kStagedStride = 80;

// K is read line by line, four lines at a time (codes), or channel by channel, eight at a time
// (F16): the same for every head dim.
constexpr Swizzle KHalvesSwizzle() { return {3, 1, 0, 0}; }
constexpr Swizzle KCodesSwizzle() { return {2, 2, 0, 0}; }

constexpr int TrailingZeros(uint32_t x) {
  int count = 0;
  while ((x & 1) == 0) {
    x >>= 1;
    ++count;
  }
  return count;
}

// F16 V: rows of D / 8 units, tokens j and j + 8 for four j, at the same place of each. With 2^z
// the power of two in D / 8, rows at a distance of 8 / 2^z start at the same bank, and two that are
// eight apart differ in bit z + 3.
constexpr Swizzle VHalvesSwizzle(int dim) {
  const uint32_t z = static_cast<uint32_t>(TrailingZeros(static_cast<uint32_t>(dim / 8)));
  const uint32_t bit = (z < 3 ? z : 3) - 1;
  return {z < 3 ? 3 : z, (1u << bit) - 1, z + 3 - bit, 1u << bit};
}

// V codes: four lines at a stride of D / 16 lines, half a line (two units) of each.
constexpr Swizzle VCodesSwizzle(int dim) {
  const int zeros = TrailingZeros(static_cast<uint32_t>(dim / 16));
  return {static_cast<uint32_t>(1 + (zeros < 1 ? 1 : zeros)), zeros == 0 ? 2u : 6u, 0, 0};
}

// What does not depend on the kernel.
constexpr AttentionGeometry CommonGeometry(int dim, int group) {
  const PageFormat codes{KvKind::kI4, KvKind::kI4, 1, dim};
  AttentionGeometry g{};
  g.dim = dim;
  g.lines = dim / 16;
  g.line_groups = (g.lines + 3) / 4;
  g.group = group;
  g.v_lines = codes.VGroup() / 16;
  g.v_groups = codes.VGroups();
  const uint32_t planes = 32 * static_cast<uint32_t>(dim);
  const uint32_t k_params = 4 * static_cast<uint32_t>(dim);
  const uint32_t v_params = 4 * kBlockTokens * static_cast<uint32_t>(g.v_groups);
  g.stage_bytes = planes + (k_params > v_params ? k_params : v_params);
  g.k_halves = KHalvesSwizzle();
  g.k_codes = KCodesSwizzle();
  g.v_halves = VHalvesSwizzle(dim);
  g.v_codes = VCodesSwizzle(dim);
  return g;
}

// For kernels that are compiled for one head dim.
template <int kDim>
inline constexpr AttentionGeometry kCommonGeometry = CommonGeometry(kDim, 1);

// Bytes of one query: FP32, as two halves, its scores of a page, and its o.
constexpr uint32_t QueryBytes(const AttentionGeometry& g) {
  return 256 * static_cast<uint32_t>(g.line_groups);
}
constexpr uint32_t HalvesBytes(const AttentionGeometry& g) {
  return 4 * static_cast<uint32_t>(g.dim);
}
inline constexpr uint32_t kScoreBytes = 4 * kBlockTokens;
inline constexpr uint32_t kSumsBytes = 16;

constexpr uint32_t RoundUp(uint32_t bytes, uint32_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Warps of a prefill block at most: with 255 registers a thread, as many as a multiprocessor has
// room for.
inline constexpr int kPrefillWarpsMax = 8;

// Decoding: a warp a share, all with the same kAttentionDecodeQueries queries and a ring each of
// `stages` chunks.
constexpr AttentionGeometry MakeDecodeGeometry(int dim, int group, int stages) {
  AttentionGeometry g = CommonGeometry(dim, group);
  g.warps = kAttentionShares;
  constexpr uint32_t kQueries = kAttentionDecodeQueries;
  constexpr uint32_t kWarps = kAttentionShares;
  g.q_halves = kQueries * QueryBytes(g);
  g.q_scale = g.q_halves + kQueries * HalvesBytes(g);
  g.sums = g.q_scale + kQueries * 4;
  g.weights = g.sums + kQueries * kSumsBytes;
  g.split_o = g.weights;  // between pages the scores' memory is free
  g.staged = g.weights + kWarps * kQueries * kScoreBytes;
  g.infos = g.staged + kWarps * kQueries * kStagedStride;
  g.ring = RoundUp(g.infos + kWarps * kPageInfos * kPageInfoBytes, 128);
  g.shared_bytes = g.ring + kWarps * static_cast<uint32_t>(stages) * g.stage_bytes;
  return g;
}

// Prefill: `warps` warps with `query_tiles` eights of queries each, and one ring of `stages`
// tensors: an F16 tensor is four chunks, whole.
constexpr AttentionGeometry MakePrefillGeometry(int dim, int group, int warps, int query_tiles,
                                                int stages) {
  AttentionGeometry g = CommonGeometry(dim, group);
  g.warps = warps;
  const uint32_t queries = static_cast<uint32_t>(8 * query_tiles * warps);
  g.q_scale = queries * QueryBytes(g);
  g.sums = g.q_scale + queries * 4;
  g.staged = g.sums + queries * kSumsBytes;
  g.split_o = g.staged + queries * kStagedStride;
  g.infos = g.split_o + queries * 4 * static_cast<uint32_t>(dim);
  g.bad_values = g.infos + kPageInfos * static_cast<uint32_t>(sizeof(AttentionPage));
  g.ring = RoundUp(g.bad_values + 8 * static_cast<uint32_t>(warps), 128);
  const uint32_t halves = 128 * static_cast<uint32_t>(dim);
  if (g.stage_bytes < halves) g.stage_bytes = halves;
  g.shared_bytes = g.ring + static_cast<uint32_t>(stages) * g.stage_bytes;
  return g;
}

}  // namespace strata::cuda
