#pragma once

#include "kernels/cuda/attention_kernel.cuh"
#include "kernels/cuda/attention_variants.h"

namespace strata::cuda {

template <int kChannelTiles, int kQueryTiles, int kStages>
struct AttentionInstance {
  static cudaError_t AllowShared(int bytes) {
    return cudaFuncSetAttribute(
        reinterpret_cast<const void*>(&AttentionKernel<kChannelTiles, kQueryTiles, kStages>),
        cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
  static cudaError_t Launch(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                            int32_t first_work, int32_t count, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(launch.kv_heads));
    return gpu::Launch(AttentionKernel<kChannelTiles, kQueryTiles, kStages>, grid,
                       dim3(32 * kAttentionWarps), geometry.shared_bytes, stream, launch, geometry,
                       first_work);
  }
  static constexpr AttentionVariant Variant() {
    return {kQueryTiles, kStages, &AllowShared, &Launch};
  }
};

}  // namespace strata::cuda
