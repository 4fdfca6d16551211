#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_variants.h"

namespace strata::cuda {
namespace {

AttentionVariant DecodeOf(int head_dim) {
  if (head_dim == 64) return Decode64();
  if (head_dim == 128) return Decode128();
  if (head_dim == 256) return Decode256();
  return head_dim < 128 ? DecodeUpTo128() : DecodeUpTo256();
}
AttentionVariant PrefillOf(int head_dim) {
  if (head_dim == 64) return Prefill64();
  if (head_dim == 128) return Prefill128();
  if (head_dim == 256) return Prefill256();
  return head_dim < 128 ? PrefillUpTo128() : PrefillUpTo256();
}

bool Valid(int head_dim) { return head_dim >= 16 && head_dim <= 256 && head_dim % 16 == 0; }

int GroupOf(const AttentionLaunch& launch) { return launch.query_heads / launch.kv_heads; }

AttentionGeometry DecodeGeometry(const AttentionVariant& variant, int head_dim, int group) {
  return MakeDecodeGeometry(head_dim, group, variant.stages);
}
AttentionGeometry PrefillGeometry(const AttentionVariant& variant, int head_dim, int group,
                                  int warps) {
  return MakePrefillGeometry(head_dim, group, warps, variant.query_tiles, variant.stages);
}

cudaError_t PrepareDecode(int head_dim) {
  const AttentionVariant variant = DecodeOf(head_dim);
  return variant.allow_shared(static_cast<int>(DecodeGeometry(variant, head_dim, 1).shared_bytes));
}

// Two warps a scheduler where there is room for them, one where there is not. With fewer, decode
// tiles do as well: their blocks have four.
cudaError_t PreparePrefill(int head_dim, int room, int32_t* queries) {
  *queries = 0;
  const AttentionVariant variant = PrefillOf(head_dim);
  for (int warps = kPrefillWarpsMax; warps >= 4; warps /= 2) {
    const int bytes = static_cast<int>(PrefillGeometry(variant, head_dim, 1, warps).shared_bytes);
    if (bytes > room) continue;
    *queries = 8 * variant.query_tiles * warps;
    return variant.allow_shared(bytes);
  }
  return cudaSuccess;
}

cudaError_t AttributeOf(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess ? error : cudaDeviceGetAttribute(value, attribute, device);
}

cudaError_t LaunchDecode(const AttentionLaunch& launch, cudaStream_t stream) {
  if (launch.decode_count == 0) return cudaSuccess;
  const AttentionVariant variant = DecodeOf(launch.head_dim);
  return variant.launch(launch, DecodeGeometry(variant, launch.head_dim, GroupOf(launch)), 0,
                        launch.decode_count, stream);
}

cudaError_t LaunchPrefill(const AttentionLaunch& launch, cudaStream_t stream) {
  if (launch.prefill_count == 0) return cudaSuccess;
  const AttentionVariant variant = PrefillOf(launch.head_dim);
  const int warps = launch.prefill_queries / (8 * variant.query_tiles);
  return variant.launch(launch, PrefillGeometry(variant, launch.head_dim, GroupOf(launch), warps),
                        launch.decode_count, launch.prefill_count, stream);
}

}  // namespace

cudaError_t PrepareAttention(int head_dim, AttentionDevice* device) {
  if (!Valid(head_dim)) return cudaErrorInvalidValue;
  int room = 0;
  cudaError_t error = AttributeOf(cudaDevAttrMaxSharedMemoryPerBlockOptin, &room);
  if (error != cudaSuccess) return error;
  error = AttributeOf(cudaDevAttrMultiProcessorCount, &device->multiprocessors);
  if (error != cudaSuccess) return error;
  error = PrepareDecode(head_dim);
  if (error != cudaSuccess) return error;
  return PreparePrefill(head_dim, room, &device->prefill_queries);
}

cudaError_t LaunchAttention(const AttentionLaunch& launch, cudaStream_t stream) {
  if (!Valid(launch.head_dim) || launch.kv_heads < 1 || launch.query_heads % launch.kv_heads != 0) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = LaunchDecode(launch, stream);
  return error != cudaSuccess ? error : LaunchPrefill(launch, stream);
}

}  // namespace strata::cuda
