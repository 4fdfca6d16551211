#pragma once

#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_queries.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/attention_warp.cuh"

namespace strata::cuda {

// The state of a split that the block's warps have made together, on its way to global memory.
template <int kQueryTiles>
class BlockState {
 public:
  static constexpr int kQueries = 8 * kQueryTiles;

  GPU_DEVICE BlockState(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                        const AttentionWork& work, int kv_head, uint8_t* shared)
      : geometry_(geometry), queries_(work.queries) {
    // Between pages the scores' memory is free.
    o_ = reinterpret_cast<float*>(shared + geometry.weights);
    m_ = reinterpret_cast<float*>(shared + geometry.totals);
    l_ = m_ + kQueries;
    all_m_ = l_ + kQueries;
    all_l_ = all_m_ + kQueries;
    const int64_t state = work.first_state + int64_t{kv_head} * work.queries;
    const int64_t count = launch.state_count;
    out_o_ = launch.states + state * geometry.dim;
    out_m_ = launch.states + count * geometry.dim + state;
    out_l_ = out_m_ + count;
    if (threadIdx.x < kQueries) all_l_[threadIdx.x] = 0.0f;
  }

  // Folds the warps' states in their order, then the split's into what came before it. By the whole
  // block; nobody may use the scores' memory before it returns.
  template <class Warp>
  GPU_DEVICE void Fold(Warp* warp) {
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < kAttentionWarps; ++w) {
      if (w == static_cast<int>(threadIdx.x / 32)) warp->FoldInto(w == 0, o_, m_, l_);
      __syncthreads();
    }
    const int dim = geometry_.dim;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int query = static_cast<int>(threadIdx.x / 32); query < queries_;
         query += kAttentionWarps) {
      const MergeFactors factors =
          MergeFactorsOf(all_m_[query], all_l_[query], m_[query], l_[query]);
      const float* o = o_ + query / 8 * dim * 8 + query % 2 * 32 + query % 8 / 2;
#pragma unroll 2
      for (int c = lane; c < dim; c += 32) {
        float* out = out_o_ + query * dim + c;
        *out = MergeValue(factors, factors.keep == 0.0f ? 0.0f : *out,
                          o[c / 16 * 128 + c / 8 % 2 * 64 + c % 8 * 4]);
      }
    }
    __syncthreads();
    if (threadIdx.x < kQueries) {
      const int query = static_cast<int>(threadIdx.x);
      const MergeFactors factors =
          MergeFactorsOf(all_m_[query], all_l_[query], m_[query], l_[query]);
      all_l_[query] = MergeValue(factors, all_l_[query], l_[query]);
      all_m_[query] = factors.m;
    }
    __syncthreads();
  }

  GPU_DEVICE void Publish() {
    const int query = static_cast<int>(threadIdx.x);
    if (query >= queries_) return;
    out_m_[query] = all_m_[query];
    out_l_[query] = all_l_[query];
  }

 private:
  const AttentionGeometry& geometry_;
  const int queries_;
  float* o_;
  float* m_;
  float* l_;
  float* all_m_;
  float* all_l_;
  float* out_o_;
  float* out_m_;
  float* out_l_;
};

// Blocks a multiprocessor that registers must allow: as many as shared memory does. Tensor cores of
// compute capability 12 come with 100 KB of it, enough for one.
template <int kChannelTiles, int kQueryTiles>
constexpr int MinBlocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  return 1;
#else
  return kQueryTiles > 1 || kChannelTiles > 8 ? 2 : 3;
#endif
}

// Grid: (work items, KV heads). Block: kAttentionWarps warps, each with its own pages and pipeline.
template <int kChannelTiles, int kQueryTiles, int kStages>
__global__ void __launch_bounds__(32 * kAttentionWarps, (MinBlocks<kChannelTiles, kQueryTiles>()))
    AttentionKernel(const __grid_constant__ AttentionLaunch launch,
                    const __grid_constant__ AttentionGeometry geometry, int32_t first_work) {
  GPU_DYN_SHARED(uint8_t, shared);
  const AttentionWork work = launch.work[first_work + blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  const int warp_index = static_cast<int>(threadIdx.x / 32);
  TileQueries<kQueryTiles> queries(geometry, shared);
  WarpAttention<kChannelTiles, kQueryTiles> warp(geometry, work, queries, shared);
  // The first pages are on their way while the queries are prepared.
  PageStream<kStages> stream(launch, geometry, work, kv_head, warp.last_position(), shared);
  BlockState<kQueryTiles> state(launch, geometry, work, kv_head, shared);
  queries.Load(launch, work, kv_head);
#pragma unroll 1
  for (int s = 0; s < work.split_count; ++s) {
    warp.Reset();
    const int pages = launch.splits[work.first_split + s].count[warp_index];
#pragma unroll 1
    for (int i = 0; i < pages; ++i) warp.AttendPage(&stream);
    warp.Finish();
    state.Fold(&warp);
  }
  state.Publish();
}

}  // namespace strata::cuda
