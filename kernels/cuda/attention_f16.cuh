#pragma once

#include "kernels/cuda/attention_stream.cuh"

// F16 pages, a tile of 16 tokens at a time, by m16n8k16. Queries and weights are FP32 numbers: each
// goes in as two halves, x = hi + lo, and two products: 22 bits, so that scores are the CPU's but
// for the order of addition. Memory is what F16 pages wait for, not the second product.
//
// In a warp, lane = 4 g + t. An MMA's A holds rows g and g + 8, B and its result columns: of A's
// row the lane has k = 2 t, 2 t + 1 (and + 8), of B the same k of column g, of C columns 2 t, 2 t +
// 1 of rows g (elements 0, 1) and g + 8 (elements 2, 3).
namespace strata::cuda {

// hi in the low half of the word, lo in the high one.
GPU_DEVICE uint32_t SplitHalves(float x) {
  const __half hi = __float2half_rn(x);
  const __half lo = __float2half_rn(__fsub_rn(x, __half2float(hi)));
  return static_cast<uint32_t>(__half_as_ushort(hi)) | static_cast<uint32_t>(__half_as_ushort(lo))
                                                           << 16;
}

// scores[n][i] of the 16 tokens of a K chunk, in units of each query's scale.
// q: [line][n][lane] of {hi k, hi k + 8, lo k, lo k + 8}, column g.
template <int kQueryTiles>
GPU_DEVICE void HalfScores(const uint8_t* chunk, const uint4* q, const AttentionGeometry& geometry,
                           float (&scores)[kQueryTiles][4]) {
  const uint32_t lane = threadIdx.x % 32;
  float low[kQueryTiles][4];
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = low[n][i] = 0.0f;
  }
  // Matrices: channels 0-7 and 8-15 of the line, each tokens 0-7 and 8-15. A line is 32 units,
  // which the swizzle does not mix.
  const uint32_t channel = (lane >> 4) * 8 + (lane & 7);
  const uint32_t unit = channel * 2 + ((lane >> 3) & 1);
  const uint8_t* row = chunk + 16 * Swizzled(geometry.k_halves, unit);
#pragma unroll 2
  for (int line = 0; line < geometry.lines; ++line) {
    uint32_t a[4];
    gpu::LdmatrixX4Trans(a, row + 512 * line);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const uint4 b = q[(line * kQueryTiles + n) * 32 + lane];
      const uint32_t high[2] = {b.x, b.y};
      const uint32_t rest[2] = {b.z, b.w};
      gpu::MmaM16N8K16(scores[n], a, high, scores[n]);
      gpu::MmaM16N8K16(low[n], a, rest, low[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = __fadd_rn(scores[n][i], low[n][i]);
  }
}

// o[mt][n] += the weights of 16 tokens times a V chunk. staged: [query][kStagedStride] bytes, the
// weights of token k as SplitHalves at 4 k.
template <int kChannelTiles, int kQueryTiles>
GPU_DEVICE void HalfValues(const uint8_t* chunk, const uint8_t* staged,
                           const AttentionGeometry& geometry,
                           float (&o)[kChannelTiles][kQueryTiles][4]) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t high[kQueryTiles][2];
  uint32_t low[kQueryTiles][2];
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const uint8_t* row = staged + (8 * n + lane / 4) * kStagedStride + lane % 4 * 8;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint2 pair = *reinterpret_cast<const uint2*>(row + 32 * h);
      high[n][h] = __byte_perm(pair.x, pair.y, 0x5410);
      low[n][h] = __byte_perm(pair.x, pair.y, 0x7632);
    }
  }
  // Matrices: tokens 0-7 and 8-15, each channels 0-7 and 8-15.
  const uint32_t token = (lane >> 4) * 8 + (lane & 7);
  const uint32_t unit = token * static_cast<uint32_t>(geometry.dim / 8) + ((lane >> 3) & 1);
#pragma unroll
  for (int mt = 0; mt < kChannelTiles; ++mt) {
    if (mt < geometry.lines) {
      uint32_t a[4];
      gpu::LdmatrixX4Trans(a, chunk + 16 * Swizzled(geometry.v_halves, unit + 2 * mt));
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        gpu::MmaM16N8K16(o[mt][n], a, high[n], o[mt][n]);
        gpu::MmaM16N8K16(o[mt][n], a, low[n], o[mt][n]);
      }
    }
  }
}

// Makes a V chunk of which some tokens are hidden from some queries safe to multiply: a weight of 0
// does not hide an infinity or a NaN. Sets what no query may see (tokens not in `visible`) and
// every value that is not finite to 0, and returns the tokens that had such a value. The warp's own
// copy.
GPU_DEVICE uint32_t ClearValues(uint8_t* chunk, uint32_t visible,
                                const AttentionGeometry& geometry) {
  const uint32_t units = static_cast<uint32_t>(geometry.dim / 8);
  uint32_t bad = 0;
#pragma unroll 1
  for (uint32_t token = 0; token < 16; ++token) {
    const bool hidden = ((visible >> token) & 1) == 0;
#pragma unroll 1
    for (uint32_t u = threadIdx.x % 32; u < units; u += 32) {
      uint32_t* words =
          reinterpret_cast<uint32_t*>(chunk + 16 * Swizzled(geometry.v_halves, token * units + u));
#pragma unroll 1
      for (int w = 0; w < 4; ++w) {
        const uint32_t word = words[w];
        const bool low = (word & 0x7c00u) == 0x7c00u;
        const bool high = (word & 0x7c000000u) == 0x7c000000u;
        if (hidden || low) words[w] &= 0xffff0000u;
        if (hidden || high) words[w] &= 0x0000ffffu;
        if (!hidden && (low || high)) bad |= 1u << token;
      }
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    bad |= __shfl_xor_sync(gpu::kAllLanes, bad, offset);
  }
  __syncwarp();
  return bad;
}

}  // namespace strata::cuda
