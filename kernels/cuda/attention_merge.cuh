#pragma once

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/gpu_compat.cuh"

namespace strata::cuda {

// The floor of a running maximum, and the score of a hidden token: far enough apart that a hidden
// token's weight is exactly 0 even where every token is hidden, and never NaN as -inf would make.
inline constexpr float kScoreFloor = -1e29f;
inline constexpr float kHiddenScore = -1e30f;

// Folding one partial state into another, m in log2 units: everywhere in the same order and with
// the same operations, so that it does not matter which kernel does it. An empty state (l = 0) is
// an exact identity on either side (A1).
struct MergeFactors {
  float m;
  float keep;  // of what was there
  float gain;  // of what comes
};

GPU_DEVICE MergeFactors MergeFactorsOf(float m, float l, float other_m, float other_l) {
  if (l == 0.0f) return {other_m, 0.0f, 1.0f};
  if (other_l == 0.0f) return {m, 1.0f, 0.0f};
  const float top = fmaxf(m, other_m);
  return {top, gpu::Exp2Approx(m - top), gpu::Exp2Approx(other_m - top)};
}

// Also of l. What a factor of 0 meets may be anything.
GPU_DEVICE float MergeValue(const MergeFactors& factors, float value, float other) {
  const float kept = factors.keep == 0.0f ? 0.0f : __fmul_rn(value, factors.keep);
  return factors.gain == 0.0f ? kept : __fmaf_rn(other, factors.gain, kept);
}

// Of the states of a work item and KV head, the first.
GPU_DEVICE int32_t FirstState(const AttentionWork& work, int kv_head) {
  return work.first_state + kv_head * work.queries;
}

// A state and those behind it, in global memory.
struct StateSlots {
  float* o;  // [query][head_dim]
  float* m;
  float* l;

  GPU_DEVICE StateSlots(const AttentionLaunch& launch, int32_t state) {
    const int64_t count = launch.state_count;
    o = launch.states + int64_t{state} * launch.head_dim;
    m = launch.states + count * launch.head_dim + state;
    l = m + count;
  }
};

}  // namespace strata::cuda
