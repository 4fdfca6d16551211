#pragma once

// Kernels with one seeded bug each, chosen by a template parameter or an argument, and the same
// kernels without it.

#include "kernels/cuda/gpu_compat.cuh"

namespace strata {

enum class Barrier { kPresent, kMissing };

// out[b] = the sum of in[b n .. b n + n).
template <Barrier kBarrier>
__global__ void BlockReduceKernel(const float* in, float* out, int n) {
  GPU_DYN_SHARED(float, sums);
  const int t = threadIdx.x;
  float sum = 0;
  for (int i = t; i < n; i += blockDim.x) sum += in[blockIdx.x * n + i];
  sums[t] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (t < s) sums[t] += sums[t + s];
    if (kBarrier == Barrier::kPresent) __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = sums[0];
}

// Warps add their own part; the block adds the warps': the last barrier may be missing.
template <Barrier kBarrier>
__global__ void WarpMergeKernel(const float* in, float* out) {
  GPU_SHARED(float, of_warp, [4]);
  const float sum = gpu::WarpSum(in[threadIdx.x]);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  if (kBarrier == Barrier::kPresent) __syncthreads();
  if (threadIdx.x < 4) {
    out[threadIdx.x] = of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3];
  }
}

enum class TileBug { kNone, kNoWait, kNoBarrierBeforeReuse };

// C[16][32] = A[16][K] B[32][K]^T in halves, one warp per 8 columns, double-buffered by cp.async.
template <int K, TileBug kBug>
__global__ void MmaTileKernel(const __half* a, const __half* b, float* c) {
  constexpr int kWarps = 4, kStride = 16 + 8;
  GPU_SHARED_ALIGNED(16, __half, tile_a, [2][16 * kStride]);
  GPU_SHARED_ALIGNED(16, __half, tile_b, [2][kWarps * 8 * kStride]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto stage = [&](int k, int buffer) {
    for (int i = threadIdx.x; i < 16 * 2; i += blockDim.x) {
      gpu::CpAsync16(&tile_a[buffer][i / 2 * kStride + i % 2 * 8], a + i / 2 * K + k + i % 2 * 8);
    }
    for (int i = threadIdx.x; i < kWarps * 8 * 2; i += blockDim.x) {
      gpu::CpAsync16(&tile_b[buffer][i / 2 * kStride + i % 2 * 8], b + i / 2 * K + k + i % 2 * 8);
    }
    gpu::CpAsyncCommit();
  };
  float sums[4] = {};
  stage(0, 0);
  for (int k = 0; k < K; k += 16) {
    const int buffer = k / 16 % 2;
    if (k + 16 < K) {
      stage(k + 16, buffer ^ 1);
      if (kBug != TileBug::kNoWait) gpu::CpAsyncWait<1>();
    } else {
      gpu::CpAsyncWait<0>();
    }
    __syncthreads();
    uint32_t fa[4], fb[2];
    gpu::LdmatrixX4(fa, &tile_a[buffer][lane % 16 * kStride + lane / 16 * 8]);
    gpu::LdmatrixX2(fb, &tile_b[buffer][(warp * 8 + lane % 8) * kStride + lane / 8 % 2 * 8]);
    gpu::MmaM16N8K16(sums, fa, fb, sums);
    if (kBug != TileBug::kNoBarrierBeforeReuse) __syncthreads();
  }
  const int row = lane / 4, column = warp * 8 + lane % 4 * 2;
  for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * 32 + column + i % 2] = sums[i];
}

__global__ void StaticSharedKernel(int* out, int shift) {  // shift 1: the last thread reads behind
  GPU_SHARED(int, values, [64]);
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x + shift] - shift;
}
__global__ void DynamicSharedKernel(int* out,
                                    int shift) {  // shift 1: the last thread writes behind
  GPU_DYN_SHARED(int, values);
  values[threadIdx.x + shift] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x + shift];
}
__global__ void GlobalWriteKernel(int* out, int shift) {
  out[threadIdx.x + shift] = static_cast<int>(threadIdx.x);
  if (shift != 0) out[0] = 0;
}
__global__ void GlobalReadKernel(int* out, int shift) {  // out: 64 zeros
  out[threadIdx.x] = out[threadIdx.x + shift] + static_cast<int>(threadIdx.x);
}

__global__ void UninitializedSharedKernel(float* out, int forgotten) {
  GPU_SHARED(float, values, [64]);
  if (static_cast<int>(threadIdx.x) != forgotten) values[threadIdx.x] = 1;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += values[i];
  out[threadIdx.x] = sum;
}

__global__ void DivergentBarrierKernel(float* out) {
  GPU_SHARED(float, values, [64]);
  values[threadIdx.x] = 1;
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    values[threadIdx.x] += 1;
    __syncthreads();
  }
  out[threadIdx.x] = values[63 - threadIdx.x];
}
__global__ void BarrierInHalfTheBlockKernel(float* out) {
  if (threadIdx.x < 32) __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void EarlyReturnKernel(float* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void ShuffleInBranchKernel(float* out) {
  float v = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16) v += __shfl_xor_sync(gpu::kAllLanes, v, 1);
  out[threadIdx.x] = v;
}
__global__ void ShuffleOutsideMaskKernel(float* out) {
  float v = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16)
    v += __shfl_down_sync(0x0000ffffu, v, 8, 32);  // lanes 8 to 15 read 16 to 23
  out[threadIdx.x] = v;
}

__global__ void VectorLoadKernel(const uint8_t* in, int* out, int offset) {
  const int4 v = *reinterpret_cast<const int4*>(in + threadIdx.x * 16 + offset);
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

enum class Increment { kAtomic, kPlain };
template <Increment kHow>
__global__ void CountBlocksKernel(int* count) {
  if (threadIdx.x != 0) return;
  if (kHow == Increment::kAtomic) {
    atomicAdd(count, 1);
  } else {
    *count = *count + 1;
  }
}

template <Barrier kBarrier>
__global__ void NeighbourKernel(float* out) {
  GPU_SHARED(float, values, [32]);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kBarrier == Barrier::kPresent) __syncwarp();
  out[threadIdx.x] = values[(threadIdx.x + 1) % 32];
}

// The last block to finish adds what all left behind; without the fences it may read too early.
__global__ void LastBlockKernel(const int* in, int* partial, unsigned* ticket, int* out) {
  GPU_SHARED(bool, last);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = in[blockIdx.x];
    __threadfence();
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
    *out = sum;
  }
}

__global__ void ScaleKernel(float* x, float factor) { x[threadIdx.x] *= factor; }

__global__ void CopyNeverWaitedKernel(const int4* in, int4* out) {
  GPU_SHARED(int4, staged, [32]);
  gpu::CpAsync16(&staged[threadIdx.x], in + threadIdx.x);
  gpu::CpAsyncCommit();
  out[threadIdx.x] = int4{1, 2, 3, 4};
}

}  // namespace strata
