#include "kernels/cuda/gpu_compat.cuh"
#include "tests/cuda/ptx_test_kernels_launch.h"

namespace strata {
namespace {

__global__ void MmaF16Kernel(const uint32_t* a, const uint32_t* b, const float* c, float* d) {
  const int lane = threadIdx.x;
  uint32_t ra[4], rb[2];
  float rc[4], rd[4];
  for (int i = 0; i < 4; ++i) ra[i] = a[lane * 4 + i];
  for (int i = 0; i < 2; ++i) rb[i] = b[lane * 2 + i];
  for (int i = 0; i < 4; ++i) rc[i] = c[lane * 4 + i];
  gpu::MmaM16N8K16(rd, ra, rb, rc);
  for (int i = 0; i < 4; ++i) d[lane * 4 + i] = rd[i];
}

}  // namespace

cudaError_t LaunchMmaF16(const uint32_t* a, const uint32_t* b, const float* c, float* d) {
  return gpu::Launch(MmaF16Kernel, dim3(1), dim3(32), 0, nullptr, a, b, c, d);
}

}  // namespace strata
