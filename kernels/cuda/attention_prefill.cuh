#pragma once

#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_prefill_stream.cuh"
#include "kernels/cuda/attention_queries.cuh"
#include "kernels/cuda/attention_variants.cuh"
#include "kernels/cuda/attention_warp.cuh"

// Prefill: many queries, of which each warp has its own, and pages that all warps of a block read
// together. A warp makes the states of a split's shares one after the other, in the order and by
// the operations of a decode block, so that a query has the same bits in either.
namespace strata::cuda {

// A warp's states beside the one in its registers: of the split that it is in, in shared memory,
// and of the splits before it, whose o is where it is to end, in global memory.
template <int kQueryTiles>
class PrefillState {
 public:
  static constexpr int kQueries = 8 * kQueryTiles;

  // `work` in global memory: where states go is looked up when they do.
  GPU_DEVICE PrefillState(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                          const AttentionWork& work, int kv_head, uint8_t* shared)
      : launch_(launch), geometry_(geometry), work_(work), kv_head_(kv_head) {
    const int first = FirstQuery();
    o_ = reinterpret_cast<float*>(shared + geometry.split_o) + first * geometry.dim;
    m_ = reinterpret_cast<float*>(shared + geometry.sums) + first * 4;
    l_ = m_ + kQueries;
    all_m_ = l_ + kQueries;
    all_l_ = all_m_ + kQueries;
    if (threadIdx.x % 32 < kQueries) all_l_[threadIdx.x % 32] = 0.0f;
  }

  // Folds a share's state into the split's; shares without pages change nothing and are left out.
  template <class Warp>
  GPU_DEVICE void FoldShare(Warp* warp) {
    warp->FoldInto(!any_, o_, m_, l_);
    any_ = true;
    __syncwarp();
  }

  // Folds the split's state into what came before it.
  GPU_DEVICE void FoldSplit() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const StateSlots slots(launch_, FirstState(work_, kv_head_) + FirstQuery());
    const int queries = work_.queries - FirstQuery();
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const int query = 8 * n + lane % 4 * 2;
      const MergeFactors factors[2] = {FactorsOf(query), FactorsOf(query + 1)};
      float* out = slots.o + query * geometry_.dim + lane / 4;
      const float* o = o_ + n * geometry_.lines * 128 + lane;
#pragma unroll 4
      for (int mt = 0; mt < geometry_.lines; ++mt) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (query + i % 2 < queries) {
            float* at = out + i % 2 * geometry_.dim + 16 * mt + 8 * (i / 2);
            const MergeFactors& f = factors[i % 2];
            *at = MergeValue(f, f.keep == 0.0f ? 0.0f : *at, o[(mt * 4 + i) * 32]);
          }
        }
      }
    }
    __syncwarp();
    if (lane < kQueries) {
      const MergeFactors factors = FactorsOf(lane);
      all_l_[lane] = MergeValue(factors, all_l_[lane], l_[lane]);
      all_m_[lane] = factors.m;
    }
    any_ = false;
    __syncwarp();
  }

  GPU_DEVICE void Publish() {
    const int query = static_cast<int>(threadIdx.x % 32);
    if (query >= min(kQueries, work_.queries - FirstQuery())) return;
    const StateSlots slots(launch_, FirstState(work_, kv_head_) + FirstQuery());
    slots.m[query] = all_m_[query];
    slots.l[query] = all_l_[query];
  }

 private:
  // Of the warp's, among the tile's.
  GPU_DEVICE static int FirstQuery() { return static_cast<int>(threadIdx.x / 32) * kQueries; }
  GPU_DEVICE MergeFactors FactorsOf(int query) const {
    return MergeFactorsOf(all_m_[query], all_l_[query], m_[query], l_[query]);
  }

  const AttentionLaunch& launch_;
  const AttentionGeometry& geometry_;
  const AttentionWork& work_;
  const int kv_head_;
  bool any_ = false;  // share of the split has been folded
  float* o_;
  float* m_;
  float* l_;
  float* all_m_;
  float* all_l_;
};

// A warp without queries, or whose queries all come before the page, only brings it in.
template <class Warp, class Stream>
GPU_DEVICE void PrefillPage(const AttentionGeometry& geometry, bool has_queries, Warp* warp,
                            Stream* stream) {
  const PageInfo info = stream->NextPage();
  const bool sees = has_queries && info.position <= warp->last_position();
  const uint8_t* k = stream->NextTensor();
  if (sees) {
    warp->StartPage(info);
    warp->ScorePage(k, info);
    warp->Softmax(info);
  }
  uint8_t* v = stream->NextTensor();
  const uint64_t bad = info.v == AttentionRead::kF16 ? stream->ClearUnseen(v, info) : 0;
  if (!sees) return;
  if (bad != 0) {
    const int low = __ffs(static_cast<int>(bad));
    warp->Spoil(info.position + (low != 0 ? low : 32 + __ffs(static_cast<int>(bad >> 32))) - 1);
  }
  const uint32_t parts =
      PartsOf(info.k, info.v, info.visible, info.position, warp->last_position());
  warp->AddPage(v, parts >> 4, info);
}

// Grid: (work items, KV heads). Block: geometry.warps warps of 8 kQueryTiles queries each. For head
// dims up to kDim, or for kDim alone.
template <int kDim, bool kExact, int kQueryTiles, int kStages>
__global__ void __launch_bounds__(32 * kPrefillWarpsMax, 1)
    AttentionPrefillKernel(const __grid_constant__ AttentionLaunch launch,
                           const __grid_constant__ AttentionGeometry given, int32_t first_work) {
  GPU_DYN_SHARED(uint8_t, shared);
  const AttentionGeometry geometry = KnownGeometry<kDim, kExact>(given);
  const AttentionWork& work = launch.work[first_work + blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  constexpr int kQueries = 8 * kQueryTiles;
  AttentionWork own = work;  // the warp's
  own.first_query += static_cast<int32_t>(threadIdx.x / 32) * kQueries;
  own.queries = min(max(work.first_query + work.queries - own.first_query, 0), kQueries);
  PrefillQueries<kQueryTiles> queries(geometry, shared);
  WarpAttention<kDim / 16, kQueryTiles, PrefillQueries<kQueryTiles>, RegisterWeights<kQueryTiles>>
      warp(geometry, own, queries, shared);
  // The first pages are on their way while the queries are prepared.
  PrefillStream<kStages> stream(launch, geometry, work, kv_head, shared);
  PrefillState<kQueryTiles> state(launch, geometry, work, kv_head, shared);
  queries.Load(launch, work, kv_head);
#pragma unroll 1
  for (int s = 0; s < work.split_count; ++s) {
#pragma unroll 1
    for (int share = 0; share < kAttentionShares; ++share) {
      const int pages = launch.splits[work.first_split + s].count[share];
      if (pages == 0) continue;
      warp.Reset();
#pragma unroll 1
      for (int i = 0; i < pages; ++i) PrefillPage(geometry, own.queries > 0, &warp, &stream);
      warp.Finish();
      state.FoldShare(&warp);
    }
    state.FoldSplit();
  }
  state.Publish();
}

template <int kDim, bool kExact, int kQueryTiles, int kStages>
AttentionVariant PrefillVariant() {
  return MakeVariant<&AttentionPrefillKernel<kDim, kExact, kQueryTiles, kStages>>(kQueryTiles,
                                                                                  kStages);
}

}  // namespace strata::cuda
