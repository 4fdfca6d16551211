#include "kernels/cuda/sample_kernels.cuh"
#include "kernels/cuda/sample_launch.h"

namespace strata::cuda {

cudaError_t AllowSample() {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(&SampleKernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kSampleColumnBytes));
}

cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  if (args.count < 0 || args.vocab < 1 || args.vocab > kSampleVocabMax || args.logits == nullptr ||
      args.rows == nullptr || args.out == nullptr) {
    return cudaErrorInvalidValue;
  }
  return gpu::Launch(SampleKernel, dim3(static_cast<unsigned>(args.count)), dim3(kSampleThreads),
                     kSampleColumnBytes, stream, args);
}

}  // namespace strata::cuda
