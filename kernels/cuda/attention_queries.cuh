#pragma once

#include "kernels/cuda/attention_codes.cuh"
#include "kernels/cuda/attention_f16.cuh"

// The queries of a block's tile, prepared once in shared memory: FP32, times log2(e) as the CPU's,
// for FoldQueries, and a power of two each that keeps them well within a half, for HalfScores.
namespace strata::cuda {

inline constexpr float kLog2E = 1.44269504f;

// Where channel c of a query lies among the FP32 queries: [n][line group][z][g][line], four
// channels from 4 z of a line each, query 8 n + g. Lines change places with g and z, so that one
// instruction reads different banks whether its lanes want a line each of two queries (FoldQueries)
// or one line of eight (HalvesOf).
GPU_DEVICE int QueryIndex(const AttentionGeometry& geometry, int query, int c) {
  const int z = c / 4 % 4;
  const int g = query % 8;
  const int line = c / 16;
  const int place = g * 4 + ((line % 4) ^ QuerySwizzle(g, z));
  return (((query / 8 * geometry.line_groups + line / 4) * 4 + z) * 32 + place) * 4 + c % 4;
}

// By the whole block. Queries that the tile does not have are zeros; channels of lines that do not
// exist are not read.
GPU_DEVICE void GatherQueries(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                              const AttentionWork& work, int kv_head, int queries, float* codes) {
  const int dim = geometry.dim;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < queries * dim / 4; i += blockDim.x) {
    const int query = i / (dim / 4);
    const int c = i % (dim / 4) * 4;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (query < work.queries) {
      const int flat = work.first_query + query;
      const int64_t row = work.first_row + flat / geometry.group;
      const int head = kv_head * geometry.group + flat % geometry.group;
      x = *reinterpret_cast<const float4*>(launch.q + (row * launch.query_heads + head) * dim + c);
    }
    *reinterpret_cast<float4*>(codes + QueryIndex(geometry, query, c)) =
        make_float4(__fmul_rn(x.x, kLog2E), __fmul_rn(x.y, kLog2E), __fmul_rn(x.z, kLog2E),
                    __fmul_rn(x.w, kLog2E));
  }
}

// By the whole block. scale[query] = 2^e such that the largest |x| 2^-e is in [128, 256): products
// with any half and their sums stay finite, and what the low halves lose is 2^-32 of the largest.
GPU_DEVICE void ScaleQueries(const AttentionGeometry& geometry, const float* codes, int queries,
                             float* scale) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int query = static_cast<int>(threadIdx.x / 32); query < queries;
       query += static_cast<int>(blockDim.x / 32)) {
    float top = 0.0f;
    for (int c = lane; c < geometry.dim; c += 32) {
      top = fmaxf(top, fabsf(codes[QueryIndex(geometry, query, c)]));
    }
    top = gpu::WarpMax(top);
    const int exponent = static_cast<int>(__float_as_uint(top) >> 23);
    // 2^-e has the exponent field 261 - exponent; zero and what is not finite are left alone.
    const int field = exponent == 0 || exponent == 255 ? 127 : min(261 - exponent, 253);
    if (lane == 0) scale[query] = __uint_as_float(static_cast<uint32_t>(254 - field) << 23);
  }
}

// What HalfScores takes of query 8 n + g, line 4 j + l, as halves: channels 2 t, 2 t + 1 and those
// 8 on. `factor` is the inverse of the query's scale, exact: a power of two.
GPU_DEVICE uint4 HalvesOf(const AttentionGeometry& geometry, const float* codes, int n, int j,
                          int l, float factor) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, t = lane % 4;
  // QueryIndex, with what depends on the lane apart from what does not.
  const int lane_index = t / 2 * 128 + g * 16 + QuerySwizzle(g, t / 2) * 4 + t % 2 * 2;
  const float* x = codes + (n * geometry.line_groups + j) * 512 + (lane_index ^ (4 * l));
  const float2 near = *reinterpret_cast<const float2*>(x);
  const float2 far = *reinterpret_cast<const float2*>(x + 256);  // z + 2, the same place
  const uint2 first = SplitPair(__fmul_rn(near.x, factor), __fmul_rn(near.y, factor));
  const uint2 second = SplitPair(__fmul_rn(far.x, factor), __fmul_rn(far.y, factor));
  return make_uint4(first.x, second.x, first.y, second.y);
}

// A decode block's, which are few: the halves are made once and kept.
class DecodeQueries {
 public:
  GPU_DEVICE DecodeQueries(const AttentionGeometry& geometry, uint8_t* shared)
      : geometry_(geometry),
        codes_(reinterpret_cast<float*>(shared)),
        halves_(reinterpret_cast<uint4*>(shared + geometry.q_halves)),
        scale_(reinterpret_cast<float*>(shared + geometry.q_scale)) {}

  // By the whole block; ends with a barrier.
  GPU_DEVICE void Load(const AttentionLaunch& launch, const AttentionWork& work, int kv_head) {
    GatherQueries(launch, geometry_, work, kv_head, kAttentionDecodeQueries, codes_);
    __syncthreads();
    ScaleQueries(geometry_, codes_, kAttentionDecodeQueries, scale_);
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < geometry_.lines * 32; i += blockDim.x) {
      halves_[i] = HalvesOf(geometry_, codes_, 0, i / 128, i / 32 % 4, 1.0f / scale_[i % 32 / 4]);
    }
    __syncthreads();
  }

  GPU_DEVICE const float4* codes() const { return reinterpret_cast<const float4*>(codes_); }
  GPU_DEVICE uint4 Halves(int /*n*/, int j, int l) const {
    return halves_[(4 * j + l) * 32 + threadIdx.x % 32];
  }
  // What takes a score of halves back, by query.
  GPU_DEVICE const float* scale() const { return scale_; }

 private:
  const AttentionGeometry& geometry_;
  float* codes_;
  uint4* halves_;
  float* scale_;
};

// A warp's own of a prefill block's. There are too many to keep them as halves too: those are made
// when they are needed, once for the tokens of a whole page.
template <int kQueryTiles>
class PrefillQueries {
 public:
  GPU_DEVICE PrefillQueries(const AttentionGeometry& geometry, uint8_t* shared)
      : geometry_(geometry),
        all_codes_(reinterpret_cast<float*>(shared)),
        all_scale_(reinterpret_cast<float*>(shared + geometry.q_scale)) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    codes_ = all_codes_ + warp * kQueryTiles * geometry.line_groups * 512;
    scale_ = all_scale_ + warp * kQueryTiles * 8;
  }

  // By the whole block; ends with a barrier.
  GPU_DEVICE void Load(const AttentionLaunch& launch, const AttentionWork& work, int kv_head) {
    const int queries = geometry_.warps * kQueryTiles * 8;
    GatherQueries(launch, geometry_, work, kv_head, queries, all_codes_);
    __syncthreads();
    ScaleQueries(geometry_, all_codes_, queries, all_scale_);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      factor_[n] = 1.0f / scale_[8 * n + threadIdx.x % 32 / 4];
    }
  }

  GPU_DEVICE const float4* codes() const { return reinterpret_cast<const float4*>(codes_); }
  GPU_DEVICE uint4 Halves(int n, int j, int l) const {
    return HalvesOf(geometry_, codes_, n, j, l, factor_[n]);
  }
  GPU_DEVICE const float* scale() const { return scale_; }

 private:
  const AttentionGeometry& geometry_;
  float* all_codes_;
  float* all_scale_;
  const float* codes_;
  const float* scale_;
  float factor_[kQueryTiles];
};

}  // namespace strata::cuda
