#pragma once

#include <cstring>

#include "kernels/cuda/attention_stream.cuh"

// F16 pages, a tile of 16 tokens at a time, by m16n8k16. Queries and weights are FP32 numbers: each
// goes in as two halves, x = hi + lo, and two products: 22 bits, so that scores are the CPU's but
// for the order of addition. Memory is what F16 pages wait for, not the second product.
//
// In a warp, lane = 4 g + t. An MMA's A holds rows g and g + 8, B and its result columns: of A's
// row the lane has k = 2 t, 2 t + 1 (and + 8), of B the same k of column g, of C columns 2 t, 2 t +
// 1 of rows g (elements 0, 1) and g + 8 (elements 2, 3).
namespace strata::cuda {

// x and y as halves, x in the low half of a word: hi of both, and lo of both.
GPU_DEVICE uint2 SplitPair(float x, float y) {
  const __half2 hi = __floats2half2_rn(x, y);
  const float2 rounded = __half22float2(hi);
  const __half2 lo = __floats2half2_rn(__fsub_rn(x, rounded.x), __fsub_rn(y, rounded.y));
  uint2 words;
  memcpy(&words.x, &hi, sizeof(hi));
  memcpy(&words.y, &lo, sizeof(lo));
  return words;
}

// scores[tile][n][i] of kTiles K chunks of 16 tokens, one behind the other, in units of each
// query's scale. queries.Halves(n, line): {hi k, hi k + 8, lo k, lo k + 8} of the lane, column g.
template <int kTiles, int kQueryTiles, class Queries>
GPU_DEVICE void HalfScores(const uint8_t* chunks, const Queries& queries,
                           const AttentionGeometry& geometry,
                           float (&scores)[kTiles][kQueryTiles][4]) {
  const uint32_t lane = static_cast<uint32_t>(gpu::FreshLane());
  float low[kTiles][kQueryTiles][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[tile][n][i] = low[tile][n][i] = 0.0f;
    }
  }
  // Matrices: channels 0-7 and 8-15 of the line, each tokens 0-7 and 8-15. A line is 32 units,
  // which the swizzle does not mix.
  const uint32_t channel = (lane >> 4) * 8 + (lane & 7);
  const uint32_t unit = channel * 2 + ((lane >> 3) & 1);
  const uint8_t* row = chunks + 16 * Swizzled(geometry.k_halves, unit);
#pragma unroll 1
  for (int j = 0; j < geometry.line_groups; ++j) {
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      if (4 * j + l < geometry.lines) {
        uint32_t a[kTiles][4];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          gpu::LdmatrixX4Trans(a[tile], row + 512 * l + 32 * geometry.dim * tile);
        }
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
          const uint4 b = queries.Halves(n, j, l);
          const uint32_t high[2] = {b.x, b.y};
          const uint32_t rest[2] = {b.z, b.w};
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            gpu::MmaM16N8K16(scores[tile][n], a[tile], high, scores[tile][n]);
          }
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            gpu::MmaM16N8K16(low[tile][n], a[tile], rest, low[tile][n]);
          }
        }
      }
    }
    row += 2048;
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[tile][n][i] = __fadd_rn(scores[tile][n][i], low[tile][n][i]);
      }
    }
  }
}

// Stages the weights of 16 tokens for the other operand, as two halves each: [query][kStagedStride]
// bytes, of tokens j and j + 8 the word of hi and the word of lo together.
template <int kQueryTiles, class Weights>
GPU_DEVICE void StageWeights(const Weights& weights, int tile, uint8_t* staged) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  // A lane of B takes j and j + 4 at once.
  const int place = lane / 4 % 4 * 2 + lane / 16;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const float4 p = weights.Get(tile, n);
    uint8_t* row = staged + (8 * n + lane % 4 * 2) * kStagedStride + 8 * place;
    *reinterpret_cast<uint2*>(row) = SplitPair(p.x, p.z);
    *reinterpret_cast<uint2*>(row + kStagedStride) = SplitPair(p.y, p.w);
  }
}

// o[mt][n] += the staged weights of 16 tokens times a V chunk. Of the reduction, 2 j and 2 j + 1
// are tokens j and j + 8: those a lane has of the scores.
template <int kChannelTiles, int kQueryTiles>
GPU_DEVICE void HalfValues(const uint8_t* chunk, const uint8_t* staged,
                           const AttentionGeometry& geometry, uint32_t lane,
                           float (&o)[kChannelTiles][kQueryTiles][4]) {
  uint32_t high[kQueryTiles][2];
  uint32_t low[kQueryTiles][2];
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const uint4 b = *reinterpret_cast<const uint4*>(staged + (8 * n + lane / 4) * kStagedStride +
                                                    lane % 4 * 16);
    high[n][0] = b.x;
    high[n][1] = b.z;
    low[n][0] = b.y;
    low[n][1] = b.w;
  }
  __syncwarp();  // the next weights may be staged
  // Matrices: j 0-3 and 4-7, each channels 0-7 and 8-15.
  const uint32_t token = (lane & 1) * 8 + (lane & 7) / 2 + (lane >> 4) * 4;
  const uint32_t unit = token * static_cast<uint32_t>(geometry.dim / 8) + ((lane >> 3) & 1);
  // Two tiles of channels at a time, so that a product does not wait for the one before it. The
  // tile behind the last one is a tile that no one reads.
#pragma unroll
  for (int mt = 0; mt < kChannelTiles; mt += 2) {
    if (mt < geometry.lines) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t line = static_cast<uint32_t>(min(mt + i, geometry.lines - 1));
        gpu::LdmatrixX4Trans(a[i], chunk + 16 * Swizzled(geometry.v_halves, unit + 2 * line));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
          gpu::MmaM16N8K16(o[mt + i][n], a[i], high[n], o[mt + i][n]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
          gpu::MmaM16N8K16(o[mt + i][n], a[i], low[n], o[mt + i][n]);
        }
      }
    }
  }
}

// Makes a token's row of a V chunk of which some tokens are hidden from some queries safe to
// multiply: a weight of 0 does not hide an infinity or a NaN. Sets what no query may see (`hidden`)
// and every value that is not finite to 0; true where the lane met such a value of a token that is
// seen. By a warp.
GPU_DEVICE bool ClearToken(uint8_t* chunk, uint32_t token, bool hidden,
                           const AttentionGeometry& geometry) {
  const uint32_t units = static_cast<uint32_t>(geometry.dim / 8);
  bool bad = false;
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
      bad = bad || (!hidden && (low || high));
    }
  }
  return bad;
}

// All 16 tokens of a chunk that is the warp's own; those not in `visible` are hidden. Returns the
// tokens that had a value which is not finite.
GPU_DEVICE uint32_t ClearChunk(uint8_t* chunk, uint32_t visible,
                               const AttentionGeometry& geometry) {
  uint32_t bad = 0;
#pragma unroll 1
  for (uint32_t token = 0; token < 16; ++token) {
    const bool hidden = ((visible >> token) & 1) == 0;
    if (ClearToken(chunk, token, hidden, geometry)) bad |= 1u << token;
  }
  bad = __reduce_or_sync(gpu::kAllLanes, bad);
  __syncwarp();
  return bad;
}

}  // namespace strata::cuda
