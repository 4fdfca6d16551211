#pragma once

// Activations on their way to the tensor cores.

#include "kernels/cuda/matmul_common.cuh"

namespace strata::cuda {

inline constexpr int32_t kPrepareThreads = 256;

// A block a row.
__global__ void __launch_bounds__(kPrepareThreads)
    PrepareActivationsKernel(const float* x, int32_t in_features,
                             const __grid_constant__ PanelShape shape, std::byte* panel) {
  GPU_SHARED(float, maxima, [kPrepareThreads / 32]);
  const int32_t row = blockIdx.x;
  const float* in = x + size_t{1} * row * in_features;
  float greatest = 0;
  for (int32_t i = threadIdx.x; i < in_features; i += kPrepareThreads) {
    greatest = fmaxf(greatest, fabsf(in[i]));
  }
  greatest = gpu::WarpMax(greatest);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = greatest;
  __syncthreads();
#pragma unroll
  for (int32_t w = 0; w < kPrepareThreads / 32; ++w) greatest = fmaxf(greatest, maxima[w]);
  const PowerScale power = PowerScaleOf(greatest);

  // Eight values a thread, four threads a group; all lanes take part in the shuffles.
  for (int32_t first = 0; first < 4 * shape.groups; first += kPrepareThreads) {
    const int32_t item = first + threadIdx.x, group = item / 4, t = item % 4;
    uint32_t hi[4] = {0, 0, 0, 0}, lo[4] = {0, 0, 0, 0};
    float sum = 0;
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t column = 32 * group + 16 * (i / 4) + 8 * (i / 2 % 2) + 2 * t + i % 2;
      const float value = column < in_features ? __fmul_rn(in[column], power.scale) : 0.0f;
      const uint32_t half = gpu::FloatToHalfBits(value);
      const float kept = gpu::HalfBitsToFloat(half);
      const uint32_t rest = gpu::FloatToHalfBits(__fsub_rn(value, kept));
      hi[i / 2] |= half << (16 * (i % 2));
      lo[i / 2] |= rest << (16 * (i % 2));
      sum = __fadd_rn(sum, __fadd_rn(kept, gpu::HalfBitsToFloat(rest)));
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(gpu::kAllLanes, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(gpu::kAllLanes, sum, 2));
    if (group >= shape.groups) continue;
    const int64_t at = int64_t{1} * row * shape.groups + group;
    auto* line = reinterpret_cast<uint4*>(panel + 128 * at);
    line[t] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    line[4 + t] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    if (t == 0) reinterpret_cast<float*>(panel + shape.Sums())[at] = sum;
  }
  if (threadIdx.x == 0) reinterpret_cast<float*>(panel + shape.Inverses())[row] = power.inverse;
}

}  // namespace strata::cuda
