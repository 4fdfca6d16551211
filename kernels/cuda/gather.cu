#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/gpu_compat.cuh"

namespace strata::cuda {
namespace {

constexpr int kGatherThreads = 256;
constexpr int kGatherSteps = 4;
constexpr uint64_t kGatherStride = uint64_t{16} * kGatherThreads;  // from one step to the next
// Bytes of a copy that a block brings at once.
constexpr uint64_t kGatherPart = kGatherStride * kGatherSteps;
// Enough bytes under way for a PCIe link (some 75 KB at 50 GB/s and 1.5 us), and no more: blocks
// that wait for the link would keep the multiprocessors from kernels of other streams.
constexpr int kGatherBlocksMax = 16;

// A block walks the list's parts, one after the other the parts that are its own. 16 bytes a thread
// and step, neighbours next to each other.
__global__ void __launch_bounds__(kGatherThreads)
    GatherKernel(const GatherCopy* copies, int32_t count) {
  uint64_t turn = 0;  // parts of the list so far
  for (int32_t i = 0; i < count; ++i) {
    const GatherCopy copy = copies[i];
    const uint8_t* from = static_cast<const uint8_t*>(copy.source);
    uint8_t* to = static_cast<uint8_t*>(copy.target);
    const uint64_t parts = (copy.bytes + kGatherPart - 1) / kGatherPart;
    // The first part at or behind `turn` that is this block's.
    uint64_t part = (blockIdx.x + gridDim.x - turn % gridDim.x) % gridDim.x;
    for (; part < parts; part += gridDim.x) {
      const uint64_t first = part * kGatherPart + uint64_t{16} * threadIdx.x;
      // All loads before the first store, which would wait for its own.
      uint4 bytes[kGatherSteps];
#pragma unroll
      for (int step = 0; step < kGatherSteps; ++step) {
        const uint64_t at = first + kGatherStride * step;
        if (at < copy.bytes) bytes[step] = gpu::LoadNoAllocate16(from + at);
      }
#pragma unroll
      for (int step = 0; step < kGatherSteps; ++step) {
        const uint64_t at = first + kGatherStride * step;
        if (at < copy.bytes) *reinterpret_cast<uint4*>(to + at) = bytes[step];
      }
    }
    turn += parts;
  }
}

}  // namespace

cudaError_t LaunchGather(const GatherCopy* copies, int32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return gpu::Launch(GatherKernel, dim3(kGatherBlocksMax), dim3(kGatherThreads), 0, stream, copies,
                     count);
}

}  // namespace strata::cuda
