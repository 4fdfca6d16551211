#pragma once

#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_queries.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/attention_variants.cuh"
#include "kernels/cuda/attention_warp.cuh"

// Decoding: few queries, and as many warps as a split has shares to wait for their pages.
namespace strata::cuda {

// The state of a split that the block's warps have made together, on its way to global memory.
class DecodeState {
 public:
  GPU_DEVICE DecodeState(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                         const AttentionWork& work, int kv_head, uint8_t* shared)
      : geometry_(geometry), queries_(work.queries), out_(launch, FirstState(work, kv_head)) {
    o_ = reinterpret_cast<float*>(shared + geometry.split_o);
    m_ = reinterpret_cast<float*>(shared + geometry.sums);
    l_ = m_ + kAttentionDecodeQueries;
    all_m_ = l_ + kAttentionDecodeQueries;
    all_l_ = all_m_ + kAttentionDecodeQueries;
    if (threadIdx.x < kAttentionDecodeQueries) all_l_[threadIdx.x] = 0.0f;
  }

  // Folds the warps' states in their order, then the split's into what came before it. By the whole
  // block; nobody may use the scores' memory before it returns.
  template <class Warp>
  GPU_DEVICE void Fold(Warp* warp) {
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < kAttentionShares; ++w) {
      if (w == static_cast<int>(threadIdx.x / 32)) warp->FoldInto(w == 0, o_, m_, l_);
      __syncthreads();
    }
    const int dim = geometry_.dim;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int query = static_cast<int>(threadIdx.x / 32); query < queries_;
         query += kAttentionShares) {
      const MergeFactors factors =
          MergeFactorsOf(all_m_[query], all_l_[query], m_[query], l_[query]);
      const float* o = o_ + query % 2 * 32 + query / 2;
#pragma unroll 2
      for (int c = lane; c < dim; c += 32) {
        float* out = out_.o + query * dim + c;
        *out = MergeValue(factors, factors.keep == 0.0f ? 0.0f : *out,
                          o[c / 16 * 128 + c / 8 % 2 * 64 + c % 8 * 4]);
      }
    }
    __syncthreads();
    if (threadIdx.x < kAttentionDecodeQueries) {
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
    out_.m[query] = all_m_[query];
    out_.l[query] = all_l_[query];
  }

 private:
  const AttentionGeometry& geometry_;
  const int queries_;
  const StateSlots out_;
  float* o_;
  float* m_;
  float* l_;
  float* all_m_;
  float* all_l_;
};

// Chunk by chunk, as the stream brings them: K, then V. One loop, so that the code that follows the
// stream is there once.
template <class Warp, class Stream>
GPU_DEVICE void DecodePage(const AttentionGeometry& geometry, Warp* warp, Stream* stream) {
  const PageInfo info = stream->NextPage();
  warp->StartPage(info);
  bool scored = false;
#pragma unroll 1
  for (uint32_t parts = info.parts; parts != 0; parts &= parts - 1) {
    const int part = __ffs(static_cast<int>(parts)) - 1;
    if (part >= 4 && !scored) {
      warp->Softmax(info);
      scored = true;
    }
    uint8_t* chunk = stream->NextChunk();
    if (part < 4) {
      warp->ScoreChunk(chunk, part, info);
    } else {
      const int tile = part - 4;
      if (info.v == AttentionRead::kF16 && warp->masked()) {
        const uint64_t seen = SeenTokens(info.visible, info.position, warp->last_position());
        const uint32_t bad =
            ClearChunk(chunk, static_cast<uint32_t>(seen >> (16 * tile)) & 0xffffu, geometry);
        if (bad != 0) warp->Spoil(info.position + 16 * tile + __ffs(static_cast<int>(bad)) - 1);
      }
      warp->AddChunk(chunk, tile, info);
    }
  }
}

// Blocks a multiprocessor that registers must allow: as many as shared memory does. Tensor cores of
// compute capability 12 come with 100 KB of it, enough for one.
template <int kDim>
constexpr int MinBlocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  return 1;
#else
  return kDim > 128 ? 2 : 3;
#endif
}

// Grid: (work items, KV heads). Block: a warp a share, each with its own pages and pipeline. For
// head dims up to kDim, or for kDim alone.
template <int kDim, bool kExact, int kStages>
__global__ void __launch_bounds__(32 * kAttentionShares, MinBlocks<kDim>())
    AttentionDecodeKernel(const __grid_constant__ AttentionLaunch launch,
                          const __grid_constant__ AttentionGeometry given, int32_t first_work) {
  GPU_DYN_SHARED(uint8_t, shared);
  const AttentionGeometry geometry = KnownGeometry<kDim, kExact>(given);
  const AttentionWork work = launch.work[first_work + blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  const int share = static_cast<int>(threadIdx.x / 32);
  DecodeQueries queries(geometry, shared);
  WarpAttention<kDim / 16, 1, DecodeQueries, SharedWeights<1>> warp(geometry, work, queries,
                                                                    shared);
  // The first pages are on their way while the queries are prepared.
  PageStream<kStages> stream(launch, geometry, work, kv_head, warp.last_position(), shared);
  DecodeState state(launch, geometry, work, kv_head, shared);
  queries.Load(launch, work, kv_head);
#pragma unroll 1
  for (int s = 0; s < work.split_count; ++s) {
    warp.Reset();
    const int pages = launch.splits[work.first_split + s].count[share];
#pragma unroll 1
    for (int i = 0; i < pages; ++i) DecodePage(geometry, &warp, &stream);
    warp.Finish();
    state.Fold(&warp);
  }
  state.Publish();
}

template <int kDim, bool kExact, int kStages>
AttentionVariant DecodeVariant() {
  return MakeVariant<&AttentionDecodeKernel<kDim, kExact, kStages>>(1, kStages);
}

}  // namespace strata::cuda
