#pragma once

#include "kernels/cuda/attention_f16.cuh"

namespace strata::cuda {

inline constexpr float kLog2E = 1.44269504f;

// The queries of a block's tile, prepared once in shared memory.
template <int kQueryTiles>
class TileQueries {
 public:
  GPU_DEVICE TileQueries(const AttentionGeometry& geometry, uint8_t* shared)
      : geometry_(geometry),
        codes_(reinterpret_cast<float*>(shared)),
        halves_(reinterpret_cast<uint4*>(shared + geometry.q_halves)),
        scale_(reinterpret_cast<float*>(shared + geometry.q_scale)) {}

  // By the whole block; ends with a barrier.
  GPU_DEVICE void Load(const AttentionLaunch& launch, const AttentionWork& work, int kv_head) {
    Gather(launch, work, kv_head);
    __syncthreads();
    Scale();
    __syncthreads();
    Split();
    __syncthreads();
  }

  // For FoldQueries: FP32, times log2(e) as the CPU's.
  GPU_DEVICE const float4* codes() const { return reinterpret_cast<const float4*>(codes_); }
  // For HalfScores: times log2(e) and a power of two that keeps them well within a half.
  GPU_DEVICE const uint4* halves() const { return halves_; }
  // What takes a score of halves() back, by query.
  GPU_DEVICE const float* scale() const { return scale_; }

 private:
  static constexpr int kQueries = 8 * kQueryTiles;

  // Where channel c of a query lies in codes_.
  GPU_DEVICE int Index(int query, int c) const {
    const int line = c / 16;
    const int four = ((query / 8 * geometry_.line_groups + line / 4) * 4 + c / 4 % 4) * 32 +
                     query % 8 * 4 + line % 4;
    return four * 4 + c % 4;
  }

  // Queries that the tile does not have are zeros; channels of lines that do not exist are not
  // read.
  GPU_DEVICE void Gather(const AttentionLaunch& launch, const AttentionWork& work, int kv_head) {
    const int dim = geometry_.dim;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kQueries * dim / 4; i += blockDim.x) {
      const int query = i / (dim / 4);
      const int c = i % (dim / 4) * 4;
      float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (query < work.queries) {
        const int flat = work.first_query + query;
        const int64_t row = work.first_row + flat / geometry_.group;
        const int head = kv_head * geometry_.group + flat % geometry_.group;
        x = *reinterpret_cast<const float4*>(launch.q + (row * launch.query_heads + head) * dim +
                                             c);
      }
      *reinterpret_cast<float4*>(codes_ + Index(query, c)) =
          make_float4(__fmul_rn(x.x, kLog2E), __fmul_rn(x.y, kLog2E), __fmul_rn(x.z, kLog2E),
                      __fmul_rn(x.w, kLog2E));
    }
  }

  // scale_[query] = 2^e such that the largest |x| 2^-e is in [128, 256): products with any half and
  // their sums stay finite, and what the low halves lose is 2^-32 of the largest.
  GPU_DEVICE void Scale() {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int query = static_cast<int>(threadIdx.x / 32); query < kQueries;
         query += kAttentionWarps) {
      float top = 0.0f;
      for (int c = lane; c < geometry_.dim; c += 32) {
        top = fmaxf(top, fabsf(codes_[Index(query, c)]));
      }
      top = gpu::WarpMax(top);
      const int exponent = static_cast<int>(__float_as_uint(top) >> 23);
      // 2^-e has the exponent field 261 - exponent; zero and what is not finite are left alone.
      const int field = exponent == 0 || exponent == 255 ? 127 : min(261 - exponent, 253);
      if (lane == 0) scale_[query] = __uint_as_float(static_cast<uint32_t>(254 - field) << 23);
    }
  }

  GPU_DEVICE void Split() {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < geometry_.lines * kQueryTiles * 32;
         i += blockDim.x) {
      const int lane = i % 32;
      const int query = i / 32 % kQueryTiles * 8 + lane / 4;
      const int c = i / 32 / kQueryTiles * 16 + lane % 4 * 2;
      const float factor = 1.0f / scale_[query];  // exact: a power of two
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] = SplitHalves(__fmul_rn(codes_[Index(query, c + k / 2 * 8 + k % 2)], factor));
      }
      halves_[i] = make_uint4(
          __byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
          __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
    }
  }

  const AttentionGeometry& geometry_;
  float* codes_;
  uint4* halves_;
  float* scale_;
};

}  // namespace strata::cuda
