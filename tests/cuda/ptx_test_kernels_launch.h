#pragma once

// One kernel for each wrapper of kernels/cuda/gpu_ptx.cuh; one warp each. Fragments lie lane after
// lane, as registers.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace strata {

// a: [32][4], b: [32][2], c and d: [32][4].
enum class FloatMma { kF16, kBf16 };
cudaError_t LaunchFloatMma(FloatMma variant, const uint32_t* a, const uint32_t* b, const float* c,
                           float* d);
enum class IntMma { kU8S8, kS8U8, kS8S8, kU8U8 };
cudaError_t LaunchIntMma(IntMma variant, const uint32_t* a, const uint32_t* b, const int32_t* c,
                         int32_t* d);

// Loads `matrices` (1, 2 or 4) 8x8 matrices of 16-bit elements from `values` ([matrices][8][8]) by
// way of shared memory. out: [32][matrices].
cudaError_t LaunchLdmatrix(int matrices, bool transposed, const uint16_t* values, uint32_t* out);

// Copies in 3 committed groups of 32 x 16 bytes through shared memory; every lane reads what its
// neighbour copied. bytes: [3][32], how much of each 16 to copy, or null for copies of all 16. in
// and out: [3][32] of 16 bytes.
cudaError_t LaunchCpAsync(const uint4* in, const int32_t* bytes, uint4* out);

// out[i] = c[i] + the dot product of the bytes of a[i] and b[i].
enum class Dot { kU8S8, kS8S8, kU8U8 };
cudaError_t LaunchDp4a(Dot variant, const uint32_t* a, const uint32_t* b, const int32_t* c,
                       int32_t* out);

// out[i] = in[i], 32 values, loaded and stored with the hint named.
enum class CacheHint { kNoAllocate, kStreaming };
cudaError_t LaunchCopy16(CacheHint hint, const uint4* in, uint4* out);

// out[i] = 2^in[i], for `count` values.
cudaError_t LaunchExp2(const float* in, float* out, int count);

// Reductions of 32 values over the warp, one result a lane. out: [3][32]: sum, maximum, minimum.
cudaError_t LaunchWarpReductions(const float* in, float* out);

// A kernel that does nothing, in any shape.
cudaError_t LaunchEmpty(dim3 grid, dim3 block, size_t dynamic_shared_bytes);

}  // namespace strata
