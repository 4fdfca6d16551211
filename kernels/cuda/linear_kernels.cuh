#pragma once

// Row-wise kernels of a forward pass: a thread block a row, or a thread an element. RoPE and the
// change of basis, a warp a head, are in rope_kernels.cuh.

#include "kernels/cuda/gpu_math.cuh"

namespace strata::cuda {

inline constexpr int32_t kRowThreads = 256;
inline constexpr int32_t kElementThreads = 256;

// Four neighbouring floats, of which `n` exist. Which thread takes which elements must not depend
// on alignment, or the order of a sum would; only the width of the loads does.
GPU_DEVICE float4 LoadQuad(const float* p, int32_t n, bool wide) {
  if (wide) return *reinterpret_cast<const float4*>(p);
  return make_float4(p[0], n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, n > 3 ? p[3] : 0.0f);
}
GPU_DEVICE void StoreQuad(float* p, int32_t n, bool wide, float4 v) {
  if (wide) {
    *reinterpret_cast<float4*>(p) = v;
    return;
  }
  p[0] = v.x;
  if (n > 1) p[1] = v.y;
  if (n > 2) p[2] = v.z;
  if (n > 3) p[3] = v.w;
}

// 1 / sqrt(mean + epsilon) of a sum of squares.
GPU_DEVICE float InverseRms(float sum, int32_t width, float epsilon) {
  const float mean = __fdiv_rn(sum, static_cast<float>(width));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, epsilon)));
}

// A block a row. `wide`: width is a multiple of 4 and all pointers are of 16 bytes.
__global__ void __launch_bounds__(kRowThreads)
    RmsNormKernel(const float* x, const float* weight, int32_t width, float epsilon, bool wide,
                  float* y) {
  GPU_SHARED(float, sums, [kRowThreads / 32]);
  const float* in = x + size_t{1} * blockIdx.x * width;
  float* out = y + size_t{1} * blockIdx.x * width;
  float sum = 0;
  for (int32_t i = 4 * threadIdx.x; i < width; i += 4 * kRowThreads) {
    const float4 v = LoadQuad(in + i, width - i, wide);
    sum = __fmaf_rn(v.x, v.x, sum);
    sum = __fmaf_rn(v.y, v.y, sum);
    sum = __fmaf_rn(v.z, v.z, sum);
    sum = __fmaf_rn(v.w, v.w, sum);
  }
  sum = gpu::WarpSum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kRowThreads / 32; ++w) total = __fadd_rn(total, sums[w]);
  const float inverse = InverseRms(total, width, epsilon);
  for (int32_t i = 4 * threadIdx.x; i < width; i += 4 * kRowThreads) {
    const float4 v = LoadQuad(in + i, width - i, wide);
    const float4 w = LoadQuad(weight + i, width - i, wide);
    StoreQuad(out + i, width - i, wide,
              make_float4(__fmul_rn(__fmul_rn(v.x, inverse), w.x),
                          __fmul_rn(__fmul_rn(v.y, inverse), w.y),
                          __fmul_rn(__fmul_rn(v.z, inverse), w.z),
                          __fmul_rn(__fmul_rn(v.w, inverse), w.w)));
  }
}

// e^x to about one unit in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor
// series to r^7 (the next term is below 6e-9). Arguments are clamped where 2^n stays normal.
GPU_DEVICE float Exp(float x) {
  x = fmaxf(fminf(x, 88.0f), -87.0f);
  const float n = rintf(__fmul_rn(x, 1.44269504f));
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  float r = __fmaf_rn(n, -0.693359375f, x);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040;
  p = __fmaf_rn(p, r, 1.0f / 720);
  p = __fmaf_rn(p, r, 1.0f / 120);
  p = __fmaf_rn(p, r, 1.0f / 24);
  p = __fmaf_rn(p, r, 1.0f / 6);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  return __fmul_rn(p, __int_as_float((__float2int_rn(n) + 127) << 23));
}

// silu(gate) * up. A NaN stays one: the clamp in Exp would hide it.
GPU_DEVICE float SwiGluOf(float gate, float up) {
  const float silu = __fdiv_rn(gate, __fadd_rn(1.0f, Exp(-gate)));
  return __fmul_rn(silu, up);
}

// Grid: x over the quads of a row, y = rows. width is a multiple of 4 where `wide`.
__global__ void __launch_bounds__(kElementThreads)
    SwiGluKernel(const float* gate_up, int32_t width, bool wide, float* y) {
  const int32_t i = 4 * (blockIdx.x * kElementThreads + threadIdx.x);
  if (i >= width) return;
  const float* gate = gate_up + size_t{2} * blockIdx.y * width + i;
  const float4 g = LoadQuad(gate, width - i, wide);
  const float4 u = LoadQuad(gate + width, width - i, wide);
  StoreQuad(
      y + size_t{1} * blockIdx.y * width + i, width - i, wide,
      make_float4(SwiGluOf(g.x, u.x), SwiGluOf(g.y, u.y), SwiGluOf(g.z, u.z), SwiGluOf(g.w, u.w)));
}

// Grid as above. x and bias are one row each where they are the same for all.
__global__ void __launch_bounds__(kElementThreads)
    AddRowsKernel(const float* x, const float* bias, int32_t width, bool accumulate, bool wide,
                  float* y) {
  const int32_t i = 4 * (blockIdx.x * kElementThreads + threadIdx.x);
  if (i >= width) return;
  const size_t at = size_t{1} * blockIdx.y * width + i;
  float4 v = LoadQuad(x + at, width - i, wide);
  if (bias != nullptr) {
    const float4 b = LoadQuad(bias + i, width - i, wide);
    v = make_float4(__fadd_rn(v.x, b.x), __fadd_rn(v.y, b.y), __fadd_rn(v.z, b.z),
                    __fadd_rn(v.w, b.w));
  }
  if (accumulate) {
    const float4 r = LoadQuad(y + at, width - i, wide);
    v = make_float4(__fadd_rn(r.x, v.x), __fadd_rn(r.y, v.y), __fadd_rn(r.z, v.z),
                    __fadd_rn(r.w, v.w));
  }
  StoreQuad(y + at, width - i, wide, v);
}

__global__ void __launch_bounds__(kElementThreads)
    GatherRowsKernel(const float* from, const int32_t* index, int32_t width, bool wide, float* to) {
  const int32_t i = 4 * (blockIdx.x * kElementThreads + threadIdx.x);
  if (i >= width) return;
  const float* row = from + size_t{1} * static_cast<uint32_t>(index[blockIdx.y]) * width;
  StoreQuad(to + size_t{1} * blockIdx.y * width + i, width - i, wide,
            LoadQuad(row + i, width - i, wide));
}

__global__ void __launch_bounds__(kElementThreads)
    NarrowKernel(const float* x, int64_t count, bool bf16, uint16_t* y) {
  const int64_t i = int64_t{1} * blockIdx.x * kElementThreads + threadIdx.x;
  if (i < count) y[i] = gpu::Narrow(x[i], bf16);
}

}  // namespace strata::cuda
