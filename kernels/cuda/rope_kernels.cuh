#pragma once

// RoPE, the basis of kv_basis.h, and the way of K and V into their pages. A warp has one head of
// one row in shared memory; four warps a block share nothing else.

#include "kernels/cuda/gpu_math.cuh"
#include "kernels/cuda/linear_kernels.cuh"
#include "kernels/cuda/linear_launch.h"

namespace strata::cuda {

inline constexpr int32_t kHeadWarps = 4;

struct SineCosine {
  double sine, cosine;
};

// sin and cos of an angle below 2^24 in magnitude, to about 2^-52: the remainder of the nearest
// multiple of pi / 2 (exact in the first part of pi, whose product's last place is 2^-52 and whose
// difference is below 1), then Taylor series (the next terms are below 5e-17).
GPU_DEVICE SineCosine SineCosineOf(double angle) {
  const double n = rint(gpu::MulDouble(angle, 0.63661977236758134308));
  double r = __fma_rn(n, -1.57079632679489655800, angle);
  r = __fma_rn(n, -6.12323399573676603587e-17, r);
  const double z = gpu::MulDouble(r, r);
  double s = -1.0 / 1307674368000;
  s = __fma_rn(s, z, 1.0 / 6227020800);
  s = __fma_rn(s, z, -1.0 / 39916800);
  s = __fma_rn(s, z, 1.0 / 362880);
  s = __fma_rn(s, z, -1.0 / 5040);
  s = __fma_rn(s, z, 1.0 / 120);
  s = __fma_rn(s, z, -1.0 / 6);
  s = __fma_rn(gpu::MulDouble(s, z), r, r);
  double c = 1.0 / 20922789888000;
  c = __fma_rn(c, z, -1.0 / 87178291200);
  c = __fma_rn(c, z, 1.0 / 479001600);
  c = __fma_rn(c, z, -1.0 / 3628800);
  c = __fma_rn(c, z, 1.0 / 40320);
  c = __fma_rn(c, z, -1.0 / 720);
  c = __fma_rn(c, z, 1.0 / 24);
  c = __fma_rn(c, z, -0.5);
  c = __fma_rn(c, z, 1.0);
  const int quadrant = static_cast<int>(static_cast<int64_t>(n) & 3);
  const double sine = quadrant % 2 == 0 ? s : c, cosine = quadrant % 2 == 0 ? c : s;
  return {quadrant < 2 ? sine : -sine, quadrant == 1 || quadrant == 2 ? -cosine : cosine};
}

// A thread a pair of a row.
__global__ void __launch_bounds__(kElementThreads)
    RopeAnglesKernel(const int32_t* positions, const float* frequency, int32_t pairs, int64_t count,
                     float magnitude, float* angles) {
  const int64_t i = int64_t{1} * blockIdx.x * kElementThreads + threadIdx.x;
  if (i >= count) return;
  const double position = positions[i / pairs], step = frequency[i % pairs];
  const SineCosine sc = SineCosineOf(gpu::MulDouble(position, step));
  angles[2 * i] = static_cast<float>(gpu::MulDouble(sc.cosine, magnitude));
  angles[2 * i + 1] = static_cast<float>(gpu::MulDouble(sc.sine, magnitude));
}

// head = H head, unnormalized, in blocks of the largest power of two that divides `dim`.
GPU_DEVICE void HadamardHead(float* head, int32_t dim, int32_t lane) {
  const int32_t block = dim & -dim;
  for (int32_t step = 1; step < block; step *= 2) {
    for (int32_t pair = lane; pair < dim / 2; pair += 32) {
      const int32_t i = pair / step * 2 * step + pair % step;
      const float a = head[i], b = head[i + step];
      head[i] = __fadd_rn(a, b);
      head[i + step] = __fsub_rn(a, b);
    }
    __syncwarp();
  }
}

// 1 / sqrt of the block that HadamardHead spans.
GPU_DEVICE float HadamardFactor(int32_t dim) {
  return __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(dim & -dim)));
}

GPU_DEVICE void NormHead(float* head, const float* norm, int32_t dim, float epsilon, int32_t lane) {
  float sum = 0;
  for (int32_t c = lane; c < dim; c += 32) sum = __fmaf_rn(head[c], head[c], sum);
  const float inverse = InverseRms(gpu::WarpSum(sum), dim, epsilon);
  for (int32_t c = lane; c < dim; c += 32)
    head[c] = __fmul_rn(__fmul_rn(head[c], inverse), norm[c]);
  __syncwarp();
}

// angles: this row's [rope.dim / 2][2].
GPU_DEVICE void RotateHead(float* head, const RopeParams& rope, const float* angles, int32_t lane) {
  const int32_t pairs = rope.dim / 2;
  const bool halves = rope.pairing == RopeParams::Pairing::kHalves;
  for (int32_t i = lane; i < pairs; i += 32) {
    const int32_t first = halves ? i : 2 * i;
    const int32_t second = halves ? i + pairs : 2 * i + 1;
    const float2 angle = *reinterpret_cast<const float2*>(angles + 2 * i);  // cos, sin
    const float a = head[first], b = head[second];
    head[first] = __fmaf_rn(a, angle.x, __fmul_rn(b, -angle.y));
    head[second] = __fmaf_rn(b, angle.x, __fmul_rn(a, angle.y));
  }
  __syncwarp();
}

// A query's way into the stored basis: norm, RoPE, 1 / d, H, 1 / sqrt(dim).
GPU_DEVICE void WriteQuery(const RopeAppendArgs& args, const float* angles, int32_t row, int32_t h,
                           float* head, int32_t lane) {
  const int32_t dim = args.head_dim;
  if (args.q_norm != nullptr) NormHead(head, args.q_norm, dim, args.norm_epsilon, lane);
  RotateHead(head, args.rope, angles, lane);
  if (args.k_scale != nullptr) {
    const int32_t kv_head = h / (args.query_heads / args.kv_heads);
    const float* scale = args.k_scale + kv_head * dim;
    for (int32_t c = lane; c < dim; c += 32) head[c] = __fdiv_rn(head[c], scale[c]);
    __syncwarp();
  }
  float factor = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(dim)));
  if (args.rotate_k) {
    HadamardHead(head, dim, lane);
    factor = __fmul_rn(factor, HadamardFactor(dim));
  }
  float* q = args.q + (size_t{1} * row * args.query_heads + h) * dim;
  for (int32_t c = lane; c < dim; c += 32) q[c] = __fmul_rn(head[c], factor);
}

// K's: norm, RoPE, d, H; then into the transposed tile of its token. V's: H.
GPU_DEVICE void AppendHead(const RopeAppendArgs& args, const float* angles, int32_t row, int32_t h,
                           bool is_v, float* head, int32_t lane) {
  const int32_t dim = args.head_dim;
  const AppendTarget target = args.targets[row];
  if (target.page == nullptr || target.token < 0 || target.token >= 64) return;
  if (!is_v) {
    if (args.k_norm != nullptr) NormHead(head, args.k_norm, dim, args.norm_epsilon, lane);
    RotateHead(head, args.rope, angles, lane);
    if (args.k_scale != nullptr) {
      for (int32_t c = lane; c < dim; c += 32) {
        head[c] = __fmul_rn(head[c], args.k_scale[h * dim + c]);
      }
      __syncwarp();
    }
  }
  float factor = 1.0f;
  if (is_v ? args.rotate_v : args.rotate_k) {
    HadamardHead(head, dim, lane);
    factor = HadamardFactor(dim);
  }
  auto* tensor =
      reinterpret_cast<uint16_t*>(target.page) + size_t{64} * dim * (is_v ? args.kv_heads + h : h);
  // KF16Index and VF16Index of page_format.h.
  uint16_t* out = is_v ? tensor + target.token * dim
                       : tensor + target.token / 16 * 16 * dim + target.token % 16;
  const int32_t stride = is_v ? 1 : 16;
  for (int32_t c = lane; c < dim; c += 32) {
    out[stride * c] = static_cast<uint16_t>(gpu::FloatToHalfBits(__fmul_rn(head[c], factor)));
  }
}

// Grid: x over the heads (queries, then K, then V) in fours, y = rows.
__global__ void __launch_bounds__(kHeadWarps * 32)
    RopeAppendKernel(const __grid_constant__ RopeAppendArgs args, const float* angles) {
  GPU_SHARED(float, heads, [kHeadWarps][kHeadDimMax]);
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t all_heads = args.query_heads + 2 * args.kv_heads;
  int32_t h = blockIdx.x * kHeadWarps + warp;
  if (h >= all_heads) return;
  const int32_t row = blockIdx.y;
  float* head = heads[warp];
  const float* x = args.qkv + (size_t{1} * row * all_heads + h) * args.head_dim;
  for (int32_t c = lane; c < args.head_dim; c += 32) head[c] = x[c];
  __syncwarp();
  const float* row_angles = angles + size_t{1} * row * (args.rope.dim / 2) * 2;
  if (h < args.query_heads) {
    WriteQuery(args, row_angles, row, h, head, lane);
    return;
  }
  h -= args.query_heads;
  const bool is_v = h >= args.kv_heads;
  AppendHead(args, row_angles, row, is_v ? h - args.kv_heads : h, is_v, head, lane);
}

__global__ void __launch_bounds__(kHeadWarps * 32)
    UnrotateHeadsKernel(int64_t count, int32_t dim, float* o) {
  GPU_SHARED(float, heads, [kHeadWarps][kHeadDimMax]);
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t at = int64_t{1} * blockIdx.x * kHeadWarps + warp;
  if (at >= count) return;
  float* head = heads[warp];
  for (int32_t c = lane; c < dim; c += 32) head[c] = o[at * dim + c];
  __syncwarp();
  HadamardHead(head, dim, lane);  // symmetric: H^T = H
  const float factor = HadamardFactor(dim);
  for (int32_t c = lane; c < dim; c += 32) o[at * dim + c] = __fmul_rn(head[c], factor);
}

}  // namespace strata::cuda
