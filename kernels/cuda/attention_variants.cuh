#pragma once

#include "kernels/cuda/attention_variants.h"
#include "kernels/cuda/gpu_compat.cuh"

namespace strata::cuda {

using AttentionKernelPointer = void (*)(AttentionLaunch, AttentionGeometry, int32_t);

template <AttentionKernelPointer kKernel>
cudaError_t AllowAttentionShared(int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kKernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <AttentionKernelPointer kKernel>
cudaError_t LaunchAttentionKernel(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                                  int32_t first_work, int32_t count, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(launch.kv_heads));
  const dim3 block(32 * static_cast<unsigned>(geometry.warps));
  return gpu::Launch(kKernel, grid, block, geometry.shared_bytes, stream, launch, geometry,
                     first_work);
}

template <AttentionKernelPointer kKernel>
AttentionVariant MakeVariant(int query_tiles, int stages) {
  return {query_tiles, stages, &AllowAttentionShared<kKernel>, &LaunchAttentionKernel<kKernel>};
}

}  // namespace strata::cuda
