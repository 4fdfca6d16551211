#include "kernels/cuda/gpu_compat.cuh"
#include "tests/cuda/ptx_test_kernels_launch.h"

namespace strata {
namespace {

constexpr int kGroups = 3;  // of cp.async

template <class T>
struct Fragments {
  uint32_t a[4], b[2];
  T c[4];
};

template <class T>
GPU_DEVICE Fragments<T> LoadFragments(const uint32_t* a, const uint32_t* b, const T* c) {
  const int lane = threadIdx.x;
  Fragments<T> fragments;
  for (int i = 0; i < 4; ++i) fragments.a[i] = a[lane * 4 + i];
  for (int i = 0; i < 2; ++i) fragments.b[i] = b[lane * 2 + i];
  for (int i = 0; i < 4; ++i) fragments.c[i] = c[lane * 4 + i];
  return fragments;
}

template <FloatMma kVariant>
__global__ void FloatMmaKernel(const uint32_t* a, const uint32_t* b, const float* c, float* d) {
  const Fragments<float> f = LoadFragments(a, b, c);
  float out[4];
  if (kVariant == FloatMma::kF16) gpu::MmaM16N8K16(out, f.a, f.b, f.c);
  if (kVariant == FloatMma::kBf16) gpu::MmaM16N8K16Bf16(out, f.a, f.b, f.c);
  for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = out[i];
}

template <IntMma kVariant>
__global__ void IntMmaKernel(const uint32_t* a, const uint32_t* b, const int32_t* c, int32_t* d) {
  const Fragments<int32_t> f = LoadFragments(a, b, c);
  int32_t out[4];
  if (kVariant == IntMma::kU8S8) gpu::MmaM16N8K32U8S8(out, f.a, f.b, f.c);
  if (kVariant == IntMma::kS8U8) gpu::MmaM16N8K32S8U8(out, f.a, f.b, f.c);
  if (kVariant == IntMma::kS8S8) gpu::MmaM16N8K32S8S8(out, f.a, f.b, f.c);
  if (kVariant == IntMma::kU8U8) gpu::MmaM16N8K32U8U8(out, f.a, f.b, f.c);
  for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = out[i];
}

template <bool kTransposed>
GPU_DEVICE void LoadMatrices(uint32_t (&r)[1], const void* row) {
  kTransposed ? gpu::LdmatrixX1Trans(r, row) : gpu::LdmatrixX1(r, row);
}
template <bool kTransposed>
GPU_DEVICE void LoadMatrices(uint32_t (&r)[2], const void* row) {
  kTransposed ? gpu::LdmatrixX2Trans(r, row) : gpu::LdmatrixX2(r, row);
}
template <bool kTransposed>
GPU_DEVICE void LoadMatrices(uint32_t (&r)[4], const void* row) {
  kTransposed ? gpu::LdmatrixX4Trans(r, row) : gpu::LdmatrixX4(r, row);
}

template <int kMatrices, bool kTransposed>
__global__ void LdmatrixKernel(const uint16_t* values, uint32_t* out) {
  constexpr int kStride = 24;  // halves: rows are aligned, and not next to each other
  GPU_SHARED_ALIGNED(16, uint16_t, rows, [kMatrices * 8 * kStride]);
  const int lane = threadIdx.x;
  for (int i = lane; i < kMatrices * 64; i += 32) rows[i / 8 * kStride + i % 8] = values[i];
  __syncwarp();
  uint32_t r[kMatrices];
  LoadMatrices<kTransposed>(r, &rows[lane % (8 * kMatrices) * kStride]);
  for (int m = 0; m < kMatrices; ++m) out[lane * kMatrices + m] = r[m];
}

__global__ void CpAsyncKernel(const uint4* in, const int32_t* bytes, uint4* out) {
  GPU_SHARED(uint4, staged, [kGroups][32]);
  const int lane = threadIdx.x;
  for (int g = 0; g < kGroups; ++g) {
    if (bytes != nullptr) {
      gpu::CpAsync16ZeroFill(&staged[g][lane], in + g * 32 + lane, bytes[g * 32 + lane]);
    } else {
      gpu::CpAsync16(&staged[g][lane], in + g * 32 + lane);
    }
    gpu::CpAsyncCommit();
  }
  gpu::CpAsyncWait<2>();
  __syncthreads();
  out[lane] = staged[0][lane ^ 1];
  gpu::CpAsyncWait<1>();
  __syncthreads();
  out[32 + lane] = staged[1][lane ^ 1];
  gpu::CpAsyncWait<0>();
  __syncthreads();
  out[64 + lane] = staged[2][lane ^ 1];
}

template <Dot kVariant>
__global__ void Dp4aKernel(const uint32_t* a, const uint32_t* b, const int32_t* c, int32_t* out) {
  const int i = threadIdx.x;
  if (kVariant == Dot::kU8S8) out[i] = gpu::Dp4aU8S8(a[i], b[i], c[i]);
  if (kVariant == Dot::kS8S8) out[i] = gpu::Dp4aS8S8(a[i], b[i], c[i]);
  if (kVariant == Dot::kU8U8) {
    out[i] = static_cast<int32_t>(gpu::Dp4aU8U8(a[i], b[i], static_cast<uint32_t>(c[i])));
  }
}

template <CacheHint kHint>
__global__ void Copy16Kernel(const uint4* in, uint4* out) {
  const int i = threadIdx.x;
  if (kHint == CacheHint::kNoAllocate) {
    out[i] = gpu::LoadNoAllocate16(in + i);
  } else {
    gpu::StoreStreaming16(out + i, gpu::LoadStreaming16(in + i));
  }
}

__global__ void Exp2Kernel(const float* in, float* out, int count) {
  for (int i = threadIdx.x; i < count; i += 32) out[i] = gpu::Exp2Approx(in[i]);
}

__global__ void WarpReductionsKernel(const float* in, float* out) {
  const int lane = threadIdx.x;
  out[lane] = gpu::WarpSum(in[lane]);
  out[32 + lane] = gpu::WarpMax(in[lane]);
  out[64 + lane] = gpu::WarpMin(in[lane]);
}

__global__ void EmptyKernel() {}

template <class... P, class... A>
cudaError_t LaunchWarp(void (*kernel)(P...), A... arguments) {
  return gpu::Launch(kernel, dim3(1), dim3(32), 0, nullptr, arguments...);
}

template <int kMatrices>
cudaError_t LaunchLdmatrixOf(bool transposed, const uint16_t* values, uint32_t* out) {
  return LaunchWarp(transposed ? LdmatrixKernel<kMatrices, true> : LdmatrixKernel<kMatrices, false>,
                    values, out);
}

}  // namespace

cudaError_t LaunchFloatMma(FloatMma variant, const uint32_t* a, const uint32_t* b, const float* c,
                           float* d) {
  return LaunchWarp(
      variant == FloatMma::kF16 ? FloatMmaKernel<FloatMma::kF16> : FloatMmaKernel<FloatMma::kBf16>,
      a, b, c, d);
}

cudaError_t LaunchIntMma(IntMma variant, const uint32_t* a, const uint32_t* b, const int32_t* c,
                         int32_t* d) {
  switch (variant) {
    case IntMma::kU8S8:
      return LaunchWarp(IntMmaKernel<IntMma::kU8S8>, a, b, c, d);
    case IntMma::kS8U8:
      return LaunchWarp(IntMmaKernel<IntMma::kS8U8>, a, b, c, d);
    case IntMma::kS8S8:
      return LaunchWarp(IntMmaKernel<IntMma::kS8S8>, a, b, c, d);
    case IntMma::kU8U8:
      return LaunchWarp(IntMmaKernel<IntMma::kU8U8>, a, b, c, d);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchLdmatrix(int matrices, bool transposed, const uint16_t* values, uint32_t* out) {
  switch (matrices) {
    case 1:
      return LaunchLdmatrixOf<1>(transposed, values, out);
    case 2:
      return LaunchLdmatrixOf<2>(transposed, values, out);
    case 4:
      return LaunchLdmatrixOf<4>(transposed, values, out);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchCpAsync(const uint4* in, const int32_t* bytes, uint4* out) {
  return LaunchWarp(CpAsyncKernel, in, bytes, out);
}

cudaError_t LaunchDp4a(Dot variant, const uint32_t* a, const uint32_t* b, const int32_t* c,
                       int32_t* out) {
  switch (variant) {
    case Dot::kU8S8:
      return LaunchWarp(Dp4aKernel<Dot::kU8S8>, a, b, c, out);
    case Dot::kS8S8:
      return LaunchWarp(Dp4aKernel<Dot::kS8S8>, a, b, c, out);
    case Dot::kU8U8:
      return LaunchWarp(Dp4aKernel<Dot::kU8U8>, a, b, c, out);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchCopy16(CacheHint hint, const uint4* in, uint4* out) {
  return LaunchWarp(hint == CacheHint::kNoAllocate ? Copy16Kernel<CacheHint::kNoAllocate>
                                                   : Copy16Kernel<CacheHint::kStreaming>,
                    in, out);
}

cudaError_t LaunchExp2(const float* in, float* out, int count) {
  return LaunchWarp(Exp2Kernel, in, out, count);
}

cudaError_t LaunchWarpReductions(const float* in, float* out) {
  return LaunchWarp(WarpReductionsKernel, in, out);
}

cudaError_t LaunchEmpty(dim3 grid, dim3 block, size_t dynamic_shared_bytes) {
  return gpu::Launch(EmptyKernel, grid, block, dynamic_shared_bytes, nullptr);
}

}  // namespace strata
