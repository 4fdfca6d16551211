#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Sampling on the device for requests without filters (DeviceCanSample in model/device_sampling.h):
// the token is the one that Sampler would choose, to the bit of every decision.
namespace strata::cuda {

// What happens to one token's logit before the choice; at most one edit a token. The steps of
// Sampler in their order: + bias; banned; repetition penalty; - subtract.
struct TokenEdit {
  int32_t id = 0;
  float bias = 0;
  float subtract = 0;   // frequency_penalty * times seen + presence_penalty, rounded as float
  bool banned = false;  // or suppressed
  bool seen = false;    // the repetition penalty applies
};

// One token to sample.
struct SampleRow {
  int32_t logits_row = 0;
  float temperature = 0;  // below 1e-6: greedy
  float repetition_penalty = 1;
  uint32_t choice = 0;
  uint64_t seed = 0;
  uint64_t position = 0;
  int32_t first_edit = 0;
  int32_t edit_count = 0;
  float* adjusted = nullptr;  // scratch, [vocab]; may be null where edit_count is 0
};

struct SampledRow {
  int32_t id = 0;
  float logprob = 0;  // of the raw distribution
};

inline constexpr int32_t kSampleVocabMax = 1 << 20;

// out[i] = the token of rows[i]. logits: [*][vocab]. All pointers are device memory or mapped; ids
// of edits are within the vocabulary. cudaErrorInvalidValue, with nothing launched, for a vocab
// outside 1..kSampleVocabMax or a null pointer. Asynchronous on `stream`.
cudaError_t LaunchSample(const float* logits, int32_t vocab, const SampleRow* rows, int32_t count,
                         const TokenEdit* edits, SampledRow* out, cudaStream_t stream);

}  // namespace strata::cuda
