#include "kernels/cuda/sample_kernels.cuh"
#include "kernels/cuda/sample_launch.h"

namespace strata::cuda {

cudaError_t LaunchSample(const float* logits, int32_t vocab, const SampleRow* rows, int32_t count,
                         const TokenEdit* edits, SampledRow* out, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (count < 0 || vocab < 1 || vocab > kSampleVocabMax || logits == nullptr || rows == nullptr ||
      out == nullptr) {
    return cudaErrorInvalidValue;
  }
  return gpu::Launch(SampleKernel, dim3(static_cast<unsigned>(count)), dim3(kSampleThreads), 0,
                     stream, logits, vocab, rows, edits, out);
}

}  // namespace strata::cuda
