#pragma once

// The one header that every kernel file includes: the same source is compiled by nvcc for a GPU and
// by the host compiler for the test-only executor (tests/cuda/executor), which runs it with one
// fiber a thread.
//
// Rules that keep a kernel runnable on both:
//   * shared memory by GPU_SHARED, GPU_SHARED_ALIGNED and GPU_DYN_SHARED, launches by gpu::Launch;
//   no raw __shared__,
//     no <<<>>>, no inline assembly outside gpu_ptx.cuh;
//   * full masks in warp collectives, no return before a barrier, no spinning on memory;
//   * where bits matter, __fmaf_rn, __fmul_rn and __fadd_rn say what may be fused (nvcc fuses by
//   default);
//   * no <string>, <vector> or absl in a .cu file: nvcc compiles it for three architectures.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define GPU_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define GPU_SHARED_ALIGNED(align, type, name, ...) \
  __shared__ __align__(align)                      \
  type name __VA_ARGS__
#define GPU_DYN_SHARED(type, name)                                 \
  extern __shared__ __align__(128) unsigned char gpu_dyn_shared[]; \
  type* name = reinterpret_cast<type*>(gpu_dyn_shared)
#define GPU_DEVICE __device__ __forceinline__

#else

#include <executor/device.h>

// GPU_SHARED(float, sums, [4][32]): one array a block, aligned for its type and no further.
#define GPU_SHARED(type, name, ...) GPU_SHARED_ALIGNED(alignof(type), type, name, __VA_ARGS__)
#define GPU_SHARED_ALIGNED(align, type, name, ...)                                                \
  using name##_shared_type = std::remove_reference_t<decltype(std::declval<type __VA_ARGS__>())>; \
  static char name##_shared_key;                                                                  \
  auto& name = *static_cast<name##_shared_type*>(                                                 \
      ::executor::StaticShared(&name##_shared_key, sizeof(name##_shared_type), align))
#define GPU_DYN_SHARED(type, name) type* name = static_cast<type*>(::executor::DynamicShared())
#define GPU_DEVICE inline

#endif

namespace gpu {

constexpr unsigned kAllLanes = 0xffffffffu;

#ifdef __CUDACC__
// Enqueues kernel(arguments...) on the stream. Returns what the launch itself found wrong.
template <class... P, class... A>
inline cudaError_t Launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                          cudaStream_t stream, A&&... arguments) {
  kernel<<<grid, block, dynamic_shared_bytes, stream>>>(std::forward<A>(arguments)...);
  return cudaGetLastError();
}
#else
using executor::Launch;
#endif

}  // namespace gpu

#ifdef __CUDACC__
#include "kernels/cuda/gpu_ptx.cuh"
#else
#include <executor/gpu_ptx.h>
#endif

namespace gpu {

// The thread's lane, anew: what is derived from it is not kept in registers from one call to the
// next.
GPU_DEVICE int FreshLane() {
  int lane = static_cast<int>(threadIdx.x % 32);
#ifdef __CUDACC__
  asm volatile("" : "+r"(lane));
#endif
  return lane;
}

// Butterflies over a whole warp: every lane gets the result, in an order of addition that is fixed.
GPU_DEVICE float WarpSum(float value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}
GPU_DEVICE float WarpMax(float value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}
GPU_DEVICE float WarpMin(float value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = fminf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// The same over the eight lanes of a column of an MMA's result: those that are equal modulo 4.
GPU_DEVICE float ColumnSum(float value) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}
GPU_DEVICE float ColumnMax(float value) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

}  // namespace gpu
