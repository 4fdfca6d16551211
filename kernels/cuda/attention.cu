#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_variants.h"

namespace strata::cuda {
namespace {

AttentionVariant VariantOf(int head_dim, bool wide) {
  if (head_dim <= 64) return AttentionUpTo64(wide);
  if (head_dim <= 128) return AttentionUpTo128(wide);
  return AttentionUpTo256();
}

bool Valid(int head_dim) { return head_dim >= 16 && head_dim <= 256 && head_dim % 16 == 0; }

cudaError_t LaunchTiles(const AttentionLaunch& launch, bool wide, int32_t first, int32_t count,
                        cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const AttentionVariant variant = VariantOf(launch.head_dim, wide);
  const AttentionGeometry geometry = MakeAttentionGeometry(
      launch.head_dim, launch.query_heads / launch.kv_heads, variant.query_tiles, variant.stages);
  return variant.launch(launch, geometry, first, count, stream);
}

}  // namespace

cudaError_t PrepareAttention(int head_dim) {
  if (!Valid(head_dim)) return cudaErrorInvalidValue;
  for (int wide = 0; wide < 2; ++wide) {
    const AttentionVariant variant = VariantOf(head_dim, wide != 0);
    const AttentionGeometry geometry =
        MakeAttentionGeometry(head_dim, 1, variant.query_tiles, variant.stages);
    const cudaError_t error = variant.allow_shared(static_cast<int>(geometry.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchAttention(const AttentionLaunch& launch, cudaStream_t stream) {
  if (!Valid(launch.head_dim) || launch.kv_heads < 1 || launch.query_heads % launch.kv_heads != 0) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = LaunchTiles(launch, false, 0, launch.narrow_count, stream);
  if (error != cudaSuccess) return error;
  return LaunchTiles(launch, true, launch.narrow_count, launch.wide_count, stream);
}

}  // namespace strata::cuda
