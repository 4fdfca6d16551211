#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace strata {

// Below it the greatest logit has all the probability that a float can tell, and division by it
// could go wrong where the processor takes subnormal numbers for 0.
inline constexpr float kGreedyTemperature = 1e-6f;

// Every knob at the value that switches it off. The order of steps is fixed (docs/ARCHITECTURE.md):
// bias, bans, min_tokens -> repetition (prompt + output) -> frequency and presence (output only) ->
// temperature 0: argmax, lowest id wins -> temperature -> top_k -> typical -> top_p -> min_p ->
// draw.
//   repetition   a token seen: logit / penalty if it is positive, logit * penalty if not (CTRL,
//                arXiv:1909.05858, section 4.1)
//   frequency    logit - penalty * times seen; presence: logit - penalty if seen (OpenAI's API)
//   typical      fewest tokens of the least |-log p - entropy| whose mass is at least typical_p
//                (arXiv:2202.00666)
//   top_p        fewest tokens of the greatest p whose mass is at least top_p
//   min_p        p at least min_p times the greatest p
// Each filter works on what the one before left, renormalised; of equals the lowest id goes first.
// Probabilities are whole numbers (kernels/draw_weight.h): a token below 10^-12 of the likeliest
// has none.
struct SamplingParams {
  float temperature = 0.0f;  // 0 (or below 1e-6): greedy
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
// so neither batch make-up nor preemption can change it; and by whole
// numbers (kernels/draw_weight.h), so a GPU draws the same token.
//
// A logit of NaN counts as -infinity. When that leaves nothing to choose from, the lowest id that
// is neither banned nor suppressed is taken (0 when there is none).
class Sampler {
 public:
  // `params` is valid for logits.size() tokens; `logits` is not empty. Without `with_logprob` the
  // log probability is 0: it takes an exponential for every token of the vocabulary.
  SampledToken Sample(const SamplingParams& params, const SamplingState& state,
                      absl::Span<const float> logits, bool with_logprob = true);

 private:
  struct Candidate {
    int32_t id = 0;
    float logit = 0;      // after temperature; the greatest is 0
    float surprise = 0;   // typical's measure
    uint64_t weight = 0;  // DrawWeight: the probability, not normalised
  };
  // The order in which top_k and top_p take candidates.
  struct ByLogit {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
  };
  void Adjust(const SamplingParams& params, const SamplingState& state,
              absl::Span<const float> logits);
  void PenalizeRepetition(const SamplingParams& params, const SamplingState& state);
  void PenalizeOutput(const SamplingParams& params, const SamplingState& state);
  int32_t Choose(const SamplingParams& params, const SamplingState& state);
  int32_t LowestAllowed(const SamplingParams& params, const SamplingState& state);

  void CollectCandidates(float greatest, float temperature);
  void KeepTopK(size_t count);
  void Weigh();
  void KeepTypical(float mass);
  void KeepTopP(float mass);
  void KeepMinP(float ratio);
  template <typename Before>
  void KeepMass(float mass, Before before);
  uint64_t TotalWeight() const;
  int32_t Draw(uint64_t bits);

  template <typename Id>
  void Count(absl::Span<const Id> ids);
  void ClearCounts();

  std::vector<float> adjusted_;
  std::vector<uint32_t> counts_;   // by id: how often Count saw it
  std::vector<uint32_t> counted_;  // the ids whose count is not 0, in no order
  std::vector<Candidate> candidates_;
  std::vector<float> weighed_logits_;  // of the candidates, the greatest 0
  std::vector<uint64_t> weights_;
};

}  // namespace strata
