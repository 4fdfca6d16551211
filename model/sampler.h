#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace strata {

// Every knob at the value that switches it off. The order of steps is fixed (docs/ARCHITECTURE.md):
// bias, bans, min_tokens -> repetition (prompt + output) -> frequency and presence (output only) ->
// temperature 0: argmax, lowest id wins -> temperature -> top_k -> typical -> top_p -> min_p ->
// draw.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  uint32_t top_k = 0;        // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  int32_t repetition_window = -1;  // last tokens it looks at; -1: all
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::map<uint32_t, float> logit_bias;
  std::vector<uint32_t> banned_token_ids;
  uint64_t seed = 0;

  // InvalidArgument naming the field, its value and its range.
  absl::Status Validate(int32_t vocab_size) const;
};

// What a draw depends on besides the logits.
struct SamplingState {
  absl::Span<const int32_t> prompt;
  absl::Span<const int32_t> output;      // generated so far
  absl::Span<const int32_t> suppressed;  // ids that may not be drawn now (EOS before min_tokens)
  uint64_t position = 0;                 // of the token to draw: output.size()
  uint32_t choice = 0;                   // n > 1: which of them
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;  // of the raw distribution, before any step
};

// Scratch-owning; one a thread. The draw is a counter-based function of (seed, position, choice),
// so neither batch make-up nor preemption can change it.
class Sampler {
 public:
  SampledToken Sample(const SamplingParams& params, const SamplingState& state,
                      absl::Span<const float> logits);

 private:
  struct Candidate {
    int32_t id;
    float logit;
    float probability;
  };
  std::vector<float> adjusted_;
  std::vector<Candidate> candidates_;
};

}  // namespace strata
