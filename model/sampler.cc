#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/draw_filter.h"
#include "model/sampler_random.h"

namespace strata {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kFloatMax = std::numeric_limits<float>::max();

constexpr float kTemperatureMax = 100.0f;
constexpr float kRepetitionMax = 10.0f;
constexpr float kPenaltyMax = 2.0f;  // frequency and presence, as OpenAI's API bounds them
constexpr float kBiasMax = 100.0f;   // likewise

// Candidates that KeepMass puts in order at first; then three times as many as it has.
constexpr size_t kMassStep = 64;

absl::Status CheckRange(absl::string_view field, double value, double low, double high,
                        bool low_is_allowed = true) {
  const bool above = low_is_allowed ? value >= low : value > low;
  if (above && value <= high) return absl::OkStatus();  // NaN fails
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; must be ",
                                                 low_is_allowed ? "at least " : "greater than ",
                                                 low, " and at most ", high));
}

absl::Status CheckId(absl::string_view field, uint32_t id, int32_t vocab_size) {
  if (id < static_cast<uint32_t>(vocab_size)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " names token ", id, "; ids are 0 to ", vocab_size - 1));
}

float Sane(float logit) { return std::isnan(logit) ? -kInfinity : std::min(logit, kFloatMax); }

// log softmax, over the logits that are numbers.
float LogProbability(absl::Span<const float> logits, int32_t id) {
  float greatest = -kInfinity;
  for (const float logit : logits) greatest = std::max(greatest, Sane(logit));
  if (greatest == -kInfinity) return -kInfinity;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(Sane(logit) - greatest);
  const double logit = Sane(logits[static_cast<size_t>(id)]);
  return static_cast<float>(logit - greatest - std::log(sum));
}

}  // namespace

absl::Status SamplingParams::Validate(int32_t vocab_size) const {
  STRATA_RETURN_IF_ERROR(CheckRange("temperature", temperature, 0, kTemperatureMax));
  STRATA_RETURN_IF_ERROR(CheckRange("top_p", top_p, 0, 1, /*low_is_allowed=*/false));
  STRATA_RETURN_IF_ERROR(CheckRange("min_p", min_p, 0, 1));
  STRATA_RETURN_IF_ERROR(CheckRange("typical_p", typical_p, 0, 1, /*low_is_allowed=*/false));
  STRATA_RETURN_IF_ERROR(CheckRange("repetition_penalty", repetition_penalty, 0, kRepetitionMax,
                                    /*low_is_allowed=*/false));
  STRATA_RETURN_IF_ERROR(
      CheckRange("repetition_window", repetition_window, -1, std::numeric_limits<int32_t>::max()));
  STRATA_RETURN_IF_ERROR(
      CheckRange("frequency_penalty", frequency_penalty, -kPenaltyMax, kPenaltyMax));
  STRATA_RETURN_IF_ERROR(
      CheckRange("presence_penalty", presence_penalty, -kPenaltyMax, kPenaltyMax));
  for (const auto& [id, bias] : logit_bias) {
    STRATA_RETURN_IF_ERROR(CheckId("logit_bias", id, vocab_size));
    STRATA_RETURN_IF_ERROR(
        CheckRange(absl::StrCat("logit_bias of token ", id), bias, -kBiasMax, kBiasMax));
  }
  if (banned_token_ids.size() > static_cast<size_t>(vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat("banned_token_ids has ", banned_token_ids.size(),
                                                   " entries; at most ", vocab_size,
                                                   " are allowed"));
  }
  for (const uint32_t id : banned_token_ids) {
    STRATA_RETURN_IF_ERROR(CheckId("banned_token_ids", id, vocab_size));
  }
  return absl::OkStatus();
}

SampledToken Sampler::Sample(const SamplingParams& params, const SamplingState& state,
                             absl::Span<const float> logits, bool with_logprob) {
  STRATA_CHECK(!logits.empty());
  Adjust(params, state, logits);
  const int32_t id = Choose(params, state);
  return {id, with_logprob ? LogProbability(logits, id) : 0.0f};
}

void Sampler::Adjust(const SamplingParams& params, const SamplingState& state,
                     absl::Span<const float> logits) {
  adjusted_.resize(logits.size());
  std::transform(logits.begin(), logits.end(), adjusted_.begin(), Sane);
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < adjusted_.size()) adjusted_[id] += bias;
  }
  Count(absl::MakeConstSpan(params.banned_token_ids));
  Count(state.suppressed);
  for (const uint32_t id : counted_) adjusted_[id] = -kInfinity;
  ClearCounts();
  if (params.repetition_penalty != 1.0f) PenalizeRepetition(params, state);
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) PenalizeOutput(params, state);
}

void Sampler::PenalizeRepetition(const SamplingParams& params, const SamplingState& state) {
  size_t window = std::numeric_limits<size_t>::max();
  if (params.repetition_window >= 0) window = static_cast<size_t>(params.repetition_window);
  const size_t of_output = std::min(window, state.output.size());
  const size_t of_prompt = std::min(window - of_output, state.prompt.size());
  Count(state.output.last(of_output));
  Count(state.prompt.last(of_prompt));
  for (const uint32_t id : counted_) {
    const float logit = adjusted_[id];
    adjusted_[id] =
        Sane(logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty);
  }
  ClearCounts();
}

void Sampler::PenalizeOutput(const SamplingParams& params, const SamplingState& state) {
  Count(state.output);
  for (const uint32_t id : counted_) {
    const float times = static_cast<float>(counts_[id]);
    adjusted_[id] -= params.frequency_penalty * times + params.presence_penalty;
  }
  ClearCounts();
}

template <typename Id>
void Sampler::Count(absl::Span<const Id> ids) {
  counts_.resize(adjusted_.size());
  for (const Id id : ids) {
    // Ids of a negative value become too large.
    if (static_cast<uint32_t>(id) >= counts_.size()) continue;
    if (counts_[static_cast<uint32_t>(id)]++ == 0) counted_.push_back(static_cast<uint32_t>(id));
  }
}

void Sampler::ClearCounts() {
  for (const uint32_t id : counted_) counts_[id] = 0;
  counted_.clear();
}

int32_t Sampler::Choose(const SamplingParams& params, const SamplingState& state) {
  const auto greatest =
      std::max_element(adjusted_.begin(), adjusted_.end());  // the first of equals
  if (*greatest == -kInfinity) return LowestAllowed(params, state);
  if (params.temperature < kGreedyTemperature)
    return static_cast<int32_t>(greatest - adjusted_.begin());
  CollectCandidates(*greatest, params.temperature);
  if (params.top_k > 0) KeepTopK(params.top_k);
  Weigh();
  if (params.typical_p < 1) {
    KeepTypical(params.typical_p);
    Weigh();  // the greatest may be gone
  }
  if (params.top_p < 1) KeepTopP(params.top_p);
  if (params.min_p > 0) KeepMinP(params.min_p);
  return Draw(DrawBits(params.seed, state.position, state.choice));
}

int32_t Sampler::LowestAllowed(const SamplingParams& params, const SamplingState& state) {
  Count(absl::MakeConstSpan(params.banned_token_ids));
  Count(state.suppressed);
  const auto allowed = std::find(counts_.begin(), counts_.end(), 0u);
  const auto id = allowed == counts_.end() ? 0 : allowed - counts_.begin();
  ClearCounts();
  return static_cast<int32_t>(id);
}

// The greatest logit becomes 0 before the division, so that no temperature overflows it.
void Sampler::CollectCandidates(float greatest, float temperature) {
  candidates_.clear();
  for (size_t id = 0; id < adjusted_.size(); ++id) {
    const float logit = (adjusted_[id] - greatest) / temperature;
    if (logit > -kInfinity) candidates_.push_back({static_cast<int32_t>(id), logit, 0, 0});
  }
}

void Sampler::KeepTopK(size_t count) {
  if (count >= candidates_.size()) return;
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(candidates_.begin(), end, candidates_.end(), ByLogit());
  candidates_.erase(end, candidates_.end());
}

void Sampler::Weigh() {
  float greatest = -kInfinity;
  for (const Candidate& candidate : candidates_) greatest = std::max(greatest, candidate.logit);
  weighed_logits_.clear();
  for (const Candidate& candidate : candidates_) {
    weighed_logits_.push_back(candidate.logit - greatest);
  }
  weights_.resize(candidates_.size());
  DrawWeights(weighed_logits_.data(), weighed_logits_.size(), weights_.data());
  for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i].weight = weights_[i];
}

uint64_t Sampler::TotalWeight() const {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  return total;
}

void Sampler::KeepTypical(float mass) {
  const auto total = static_cast<double>(TotalWeight());
  const double log_total = std::log(total) - kDrawWeightBits * std::numbers::ln2;
  double entropy = 0;
  for (const Candidate& candidate : candidates_) {
    entropy += static_cast<double>(candidate.weight) / total * (log_total - candidate.logit);
  }
  for (Candidate& candidate : candidates_) {
    const double information = log_total - candidate.logit;
    candidate.surprise = static_cast<float>(std::abs(information - entropy));
  }
  KeepMass(mass, [](const Candidate& a, const Candidate& b) {
    return a.surprise != b.surprise ? a.surprise < b.surprise : a.id < b.id;
  });
}

void Sampler::KeepTopP(float mass) { KeepMass(mass, ByLogit()); }

// Keeps the first candidates in the order of `before` whose weight reaches `mass` of the total.
// Only so many are sorted as are needed: mostly a few of a whole vocabulary.
template <typename Before>
void Sampler::KeepMass(float mass, Before before) {
  const uint64_t target = MassTarget(MassFraction(mass), TotalWeight());
  uint64_t sum = 0;
  size_t sorted = 0;
  for (size_t at = 0; at < candidates_.size(); ++at) {
    if (at == sorted) {
      const auto from = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
      sorted = std::min(candidates_.size(), sorted == 0 ? kMassStep : sorted * 4);
      const auto to = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
      std::nth_element(from, to, candidates_.end(), before);
      std::sort(from, to, before);
    }
    sum += candidates_[at].weight;
    if (sum > target) {
      candidates_.resize(at + 1);
      return;
    }
  }
}

void Sampler::KeepMinP(float ratio) {
  std::erase_if(candidates_, [least = LeastWeight(ratio)](const Candidate& candidate) {
    return candidate.weight < least;
  });
}

// By ascending id, so that the draw depends on which tokens are left, not on how they were sorted.
int32_t Sampler::Draw(uint64_t bits) {
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(candidates_.begin(), candidates_.end(), by_id)) {
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  }
  const uint64_t target = DrawTarget(bits, TotalWeight());
  uint64_t sum = 0;
  for (const Candidate& candidate : candidates_) {
    sum += candidate.weight;
    if (sum > target) return candidate.id;
  }
  return candidates_.back().id;  // not reached: the target is below the total
}

}  // namespace strata
