#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sample_types.h"

namespace strata::cuda {

// [count][vocab] each: the first for rows with edits or filters, the second for rows with filters.
struct SampleScratch {
  float* logits = nullptr;
  uint64_t* weights = nullptr;
};

struct SampleArgs {
  const float* logits = nullptr;  // [*][vocab]
  int32_t vocab = 0;
  const SampleRow* rows = nullptr;
  int32_t count = 0;
  const TokenEdit* edits = nullptr;  // may be null where no row has any
  SampleScratch scratch;             // may be null where no row has edits or filters
  SampledRow* out = nullptr;
};

// Lets the kernel take the shared memory it needs: once on a device, before LaunchSample.
cudaError_t AllowSample();

// out[i] = the token of rows[i]: the one that Sampler would choose, to the bit of every decision,
// for requests that DeviceCanSample (model/device_draws.h) takes. All pointers are device memory or
// mapped; ids of edits are within the vocabulary. cudaErrorInvalidValue, with nothing launched, for
// a vocab outside 1..kSampleVocabMax or a null pointer. Asynchronous on `stream`.
cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream);

}  // namespace strata::cuda
