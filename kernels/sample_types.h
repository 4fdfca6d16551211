#pragma once

#include <cstdint>

// What drawing tokens where the logits lie is told and tells (token_sampler.h). No more than a
// kernel can include.
namespace strata {

// What happens to one token's logit before the choice; at most one edit a token. The steps of
// Sampler in their order: + bias; banned; repetition penalty; - subtract.
struct TokenEdit {
  int32_t id = 0;
  float bias = 0;
  float subtract = 0;   // frequency_penalty * times seen + presence_penalty, rounded as float
  bool banned = false;  // or suppressed
  bool seen = false;    // the repetition penalty applies
};

// One token to draw.
struct SampleRow {
  int32_t logits_row = 0;
  float temperature = 0;  // below 1e-6: greedy, and filters are not looked at
  float repetition_penalty = 1;
  uint32_t choice = 0;
  uint64_t seed = 0;
  uint64_t position = 0;
  int32_t first_edit = 0;
  int32_t edit_count = 0;
  uint32_t top_k = 0;         // 0: all; at most the vocabulary
  bool with_logprob = true;   // else it is 0: an exponential less for every token
  uint64_t top_p = 0;         // MassFraction of draw_filter.h; 0: all
  uint64_t least_weight = 0;  // LeastWeight of draw_filter.h
};

struct SampledRow {
  int32_t id = 0;
  float logprob = 0;  // of the raw distribution
};

inline constexpr int32_t kSampleVocabMax = 1 << 20;

}  // namespace strata
