#pragma once

// Arithmetic whose every rounding is named, so that the GPU, the executor and the CPU kernels give
// the same bits: nvcc may fuse a * b + c unless told not to.

#include "kernels/cuda/gpu_compat.cuh"

#ifdef __CUDACC__
#define GPU_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GPU_HOST_DEVICE inline
#endif

namespace gpu {

// The least float that is at least a - b.
GPU_DEVICE float SubUp(float a, float b) {
#ifdef __CUDACC__
  return __fsub_ru(a, b);
#else
  const float difference = a - b;
  const float low = difference - a;  // what the subtraction rounded away (Knuth)
  const float lost = (a - (difference - low)) - (b + low);
  return lost > 0 ? nextafterf(difference, INFINITY) : difference;
#endif
}

GPU_DEVICE double MulDouble(double a, double b) {
#ifdef __CUDACC__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
GPU_DEVICE double AddDouble(double a, double b) {
#ifdef __CUDACC__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

GPU_DEVICE float HalfBitsToFloat(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
GPU_DEVICE uint32_t FloatToHalfBits(float x) { return __half_as_ushort(__float2half_rn(x)); }
GPU_DEVICE uint32_t FloatToHalfBitsUp(float x) { return __half_as_ushort(__float2half_ru(x)); }

// To F16 or BF16, rounded to nearest.
GPU_DEVICE uint16_t Narrow(float x, bool bf16) {
  return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
              : static_cast<uint16_t>(FloatToHalfBits(x));
}

// Two halves minus two halves, each rounded to nearest.
GPU_DEVICE uint32_t SubHalves(uint32_t a, uint32_t b) {
#ifdef __CUDACC__
  const __half2 difference =
      __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&difference);
#else
  const float low = HalfBitsToFloat(a & 0xffffu) - HalfBitsToFloat(b & 0xffffu);
  const float high = HalfBitsToFloat(a >> 16) - HalfBitsToFloat(b >> 16);
  return FloatToHalfBits(low) | FloatToHalfBits(high) << 16;
#endif
}

}  // namespace gpu
