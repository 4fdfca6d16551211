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

// Where unit u of a chunk lies: u ^ ((u >> shift) & mask). A permutation within groups of eight
// units (a row of the 32 banks) that depends on the row alone, so that the units which one
// instruction reads at a large stride lie in different banks.
struct Swizzle {
  uint32_t shift;
  uint32_t mask;
};

struct AttentionGeometry {
  int32_t dim;          // D
  int32_t lines;        // D / 16: lines of a plane in a tile of tokens, and tiles of channels
  int32_t line_groups;  // lines / 4, rounded up: what one int8 MMA pair reduces
  int32_t group;        // query heads a KV head
  int32_t v_lines;      // lines of one V group
  int32_t v_groups;
  uint32_t chunk_bytes;  // of the largest chunk of any format

  // Byte offsets in shared memory (AttentionSmem).
  uint32_t q_halves;
  uint32_t q_scale;
  uint32_t totals;
  uint32_t weights;
  uint32_t staged;
  uint32_t infos;
  uint32_t ring;
  uint32_t shared_bytes;

  Swizzle k_halves;
  Swizzle k_codes;
  Swizzle v_halves;
  Swizzle v_codes;
};

// Pages whose description a warp's producer may be ahead of its consumer, at least.
inline constexpr int kPageInfos = 4;
inline constexpr int kPageInfoBytes = 16;
// Bytes of one query's weights, staged for the other operand: 64 int8, or 16 pairs of halves, at a
// stride that spreads eight queries over the banks.
inline constexpr int kStagedStride = 80;

// K is read line by line, four lines at a time (codes), or channel by channel, eight at a time
// (F16): the same for every head dim.
constexpr Swizzle KHalvesSwizzle() { return {3, 1}; }
constexpr Swizzle KCodesSwizzle() { return {2, 2}; }

constexpr int TrailingZeros(uint32_t x) {
  int count = 0;
  while ((x & 1) == 0) {
    x >>= 1;
    ++count;
  }
  return count;
}

// F16 V: eight rows of `row` = D / 8 units, at the same place of each. Rows at a distance of
// 8 / 2^z, where 2^z divides `row`, start at the same bank; what tells them apart are the bits
// above.
constexpr Swizzle VHalvesSwizzle(int dim) {
  const int zeros = TrailingZeros(static_cast<uint32_t>(dim / 8));
  return {static_cast<uint32_t>(zeros < 3 ? 3 : zeros), zeros < 3 ? (1u << zeros) - 1 : 7u};
}

// V codes: four lines at a stride of D / 16 lines, half a line (two units) of each.
constexpr Swizzle VCodesSwizzle(int dim) {
  const int zeros = TrailingZeros(static_cast<uint32_t>(dim / 16));
  return {static_cast<uint32_t>(1 + (zeros < 1 ? 1 : zeros)), zeros == 0 ? 2u : 6u};
}

// `stages`: chunks in a warp's ring. `query_tiles`: eights of queries in a tile.
constexpr AttentionGeometry MakeAttentionGeometry(int dim, int group, int query_tiles, int stages) {
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
  g.chunk_bytes = planes + (k_params > v_params ? k_params : v_params);
  const uint32_t queries = 8 * static_cast<uint32_t>(query_tiles);
  const uint32_t warps = kAttentionWarps;
  g.q_halves = queries * 256 * static_cast<uint32_t>(g.line_groups);
  g.q_scale = g.q_halves + queries * planes / 8;
  g.totals = g.q_scale + queries * 4;
  g.weights = g.totals + queries * 16;
  g.staged = g.weights + warps * queries * 256;
  g.infos = g.staged + warps * queries * kStagedStride;
  g.ring = (g.infos + warps * kPageInfos * kPageInfoBytes + 127) / 128 * 128;
  g.shared_bytes = g.ring + warps * static_cast<uint32_t>(stages) * g.chunk_bytes;
  g.k_halves = KHalvesSwizzle();
  g.k_codes = KCodesSwizzle();
  g.v_halves = VHalvesSwizzle(dim);
  g.v_codes = VCodesSwizzle(dim);
  return g;
}

}  // namespace strata::cuda
