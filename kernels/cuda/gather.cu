#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/gpu_compat.cuh"

namespace strata::cuda {
namespace {

constexpr int kGatherThreads = 256;
// Blocks a copy: a few pages at a time are then enough bytes under way for a PCIe link (some 75 KB
// at 50 GB/s and 1.5 us).
constexpr int kGatherBlocks = 4;

// Grid: (copies, parts). 16 bytes a thread and step, neighbours next to each other.
__global__ void __launch_bounds__(kGatherThreads) GatherKernel(const GatherCopy* copies) {
  const GatherCopy copy = copies[blockIdx.x];
  const uint8_t* from = static_cast<const uint8_t*>(copy.source);
  uint8_t* to = static_cast<uint8_t*>(copy.target);
  const uint64_t step = uint64_t{16} * blockDim.x * gridDim.y;
#pragma unroll 4
  for (uint64_t at = 16 * (uint64_t{blockIdx.y} * blockDim.x + threadIdx.x); at < copy.bytes;
       at += step) {
    *reinterpret_cast<uint4*>(to + at) = gpu::LoadNoAllocate16(from + at);
  }
}

}  // namespace

cudaError_t LaunchGather(const GatherCopy* copies, int32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return gpu::Launch(GatherKernel, dim3(static_cast<unsigned>(count), kGatherBlocks),
                     dim3(kGatherThreads), 0, stream, copies);
}

}  // namespace strata::cuda
