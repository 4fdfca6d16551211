#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sample_types.h"

namespace strata::cuda {

// out[i] = the token of rows[i]: the one that Sampler would choose, to the bit of every decision,
// for requests without filters (DeviceCanSample in model/device_sampling.h). logits: [*][vocab].
// All pointers are device memory or mapped, those in `rows` too; ids of edits are within the
// vocabulary. cudaErrorInvalidValue, with nothing launched, for a vocab outside
// 1..kSampleVocabMax or a null pointer (`edits` may be null where no row has any). Asynchronous on
// `stream`.
cudaError_t LaunchSample(const float* logits, int32_t vocab, const SampleRow* rows, int32_t count,
                         const TokenEdit* edits, SampledRow* out, cudaStream_t stream);

}  // namespace strata::cuda
