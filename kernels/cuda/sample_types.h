#pragma once

#include <cstdint>

// What sampling on the device is told and tells (sample_launch.h). No CUDA: the host builds these.
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
  float* adjusted = nullptr;  // device scratch, [vocab]; may be null where edit_count is 0
  bool with_logprob = true;   // else it is 0: an exponential less for every token
};

struct SampledRow {
  int32_t id = 0;
  float logprob = 0;  // of the raw distribution
};

inline constexpr int32_t kSampleVocabMax = 1 << 20;

}  // namespace strata::cuda
