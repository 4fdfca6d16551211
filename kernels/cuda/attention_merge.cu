#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/gpu_compat.cuh"

namespace strata::cuda {
namespace {

constexpr float kLn2 = 0.693147181f;

// The states of one (row, query head), folded slot by slot. Every warp works out the factors of 32
// slots at a time, a lane each, and then goes through them in order.
class SlotMerge {
 public:
  GPU_DEVICE SlotMerge(const AttentionMerge& merge, int64_t first_state, int64_t stride)
      : merge_(merge), first_state_(first_state), stride_(stride) {}

  // A thread's channel is `c`; below `dim` or it has none.
  GPU_DEVICE void Fold(int slots, int c) {
#pragma unroll 1
    for (int first = 0; first < slots; first += 32) {
      const int count = min(slots - first, 32);
      const Lane lane = Factors(first, count);
#pragma unroll 4
      for (int s = 0; s < count; ++s) {
        const MergeFactors factors{0.0f, __shfl_sync(gpu::kAllLanes, lane.keep, s),
                                   __shfl_sync(gpu::kAllLanes, lane.gain, s)};
        const float other_l = __shfl_sync(gpu::kAllLanes, lane.l, s);
        const int64_t state = first_state_ + (first + s) * stride_;
        const float other = c < merge_.head_dim ? merge_.states[state * merge_.head_dim + c] : 0.0f;
        o = MergeValue(factors, o, other);
        l = MergeValue(factors, l, other_l);
      }
    }
  }

  float o = 0.0f;
  float m = kScoreFloor;  // log2 units
  float l = 0.0f;

 private:
  struct Lane {
    float keep, gain, l;
  };

  // What MergeFactorsOf gives from slot to slot: the maximum before and after a slot is one over
  // all slots before it that are not empty, which a scan finds exactly.
  GPU_DEVICE Lane Factors(int first, int count) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t state = first_state_ + (first + min(lane, count - 1)) * stride_;
    const float* m_of = merge_.states + int64_t{merge_.state_count} * merge_.head_dim;
    const float slot_m = m_of[state];
    const float slot_l = lane < count ? m_of[merge_.state_count + state] : 0.0f;
    float top = slot_l == 0.0f ? -INFINITY : slot_m;
    for (int offset = 1; offset < 32; offset *= 2) {
      const float before = __shfl_up_sync(gpu::kAllLanes, top, offset);
      if (lane >= offset) top = fmaxf(top, before);
    }
    const unsigned seen = __ballot_sync(gpu::kAllLanes, slot_l != 0.0f);
    const bool seen_before = l != 0.0f || (seen & ((1u << lane) - 1)) != 0;
    const float carried = l != 0.0f ? m : -INFINITY;
    float m_before = __shfl_up_sync(gpu::kAllLanes, top, 1);
    m_before = lane == 0 ? carried : fmaxf(m_before, carried);
    const MergeFactors factors =
        MergeFactorsOf(m_before, seen_before ? 1.0f : 0.0f, slot_m, slot_l);
    const float last = __shfl_sync(gpu::kAllLanes, top, 31);
    if (seen != 0) m = fmaxf(last, carried);
    return {factors.keep, factors.gain, slot_l};
  }

  const AttentionMerge& merge_;
  const int64_t first_state_;
  const int64_t stride_;
};

// Grid: (tiles, KV heads, merge.queries_max). Block: the channels.
__global__ void MergeKernel(const __grid_constant__ AttentionMerge merge) {
  const AttentionTile tile = merge.tiles[blockIdx.x];
  const int query = static_cast<int>(blockIdx.z);
  if (query >= tile.queries) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int group = merge.query_heads / merge.kv_heads;
  const int c = static_cast<int>(threadIdx.x);
  const int flat = tile.first_query + query;
  const int64_t row = tile.first_row + flat / group;
  const int64_t target = row * merge.query_heads + kv_head * group + flat % group;

  const int64_t first_state = tile.first_state + int64_t{kv_head} * tile.queries + query;
  SlotMerge slots(merge, first_state, int64_t{merge.kv_heads} * tile.queries);
  slots.Fold(tile.slots, c);

  float o = slots.o;
  float l = slots.l;
  float m = slots.l == 0.0f ? -INFINITY : __fmul_rn(slots.m, kLn2);
  const float other_l = merge.other.l == nullptr ? 0.0f : merge.other.l[target];
  if (other_l != 0.0f) {
    const float other_m = merge.other.m[target];
    const float top = fmaxf(m, other_m);
    // expf(-inf) is 0: an empty state takes the other's bits.
    const MergeFactors factors{top, expf(m - top), expf(other_m - top)};
    const int64_t at = target * merge.head_dim + c;
    o = MergeValue(factors, o, c < merge.head_dim ? merge.other.o[at] : 0.0f);
    l = MergeValue(factors, l, other_l);
    m = top;
  }
  __syncthreads();  // `out` may be `other`
  if (merge.out.m == nullptr) o = l == 0.0f ? 0.0f : __fdiv_rn(o, l);
  if (c < merge.head_dim) merge.out.o[target * merge.head_dim + c] = o;
  if (merge.out.m != nullptr && c == 0) {
    merge.out.m[target] = m;
    merge.out.l[target] = l;
  }
}

}  // namespace

cudaError_t LaunchAttentionMerge(const AttentionMerge& merge, cudaStream_t stream) {
  if (merge.tile_count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(merge.tile_count), static_cast<unsigned>(merge.kv_heads),
                  static_cast<unsigned>(merge.queries_max));
  const dim3 block(static_cast<unsigned>((merge.head_dim + 31) / 32 * 32));
  return gpu::Launch(MergeKernel, grid, block, 0, stream, merge);
}

}  // namespace strata::cuda
