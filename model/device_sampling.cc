#include "model/device_sampling.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace strata {
namespace {

// The edits of one row, appended to those of others.
class Edits {
 public:
  Edits(int32_t vocab_size, std::vector<cuda::TokenEdit>* edits)
      : vocab_size_(vocab_size), first_(edits->size()), edits_(*edits) {}

  // Null for an id outside the vocabulary, which no step of Sampler looks at either. Valid until
  // the next call.
  cuda::TokenEdit* Of(int64_t id) {
    if (id < 0 || id >= vocab_size_) return nullptr;
    if (places_.empty()) places_.resize(static_cast<size_t>(vocab_size_));
    uint32_t& place = places_[static_cast<size_t>(id)];
    if (place == 0) {
      edits_.emplace_back().id = static_cast<int32_t>(id);
      place = static_cast<uint32_t>(edits_.size() - first_);
    }
    return &edits_[first_ + place - 1];
  }
  void Ban(int64_t id) {
    if (cuda::TokenEdit* edit = Of(id)) edit->banned = true;
  }
  void See(absl::Span<const int32_t> ids) {
    for (const int32_t id : ids) {
      if (cuda::TokenEdit* edit = Of(id)) edit->seen = true;
    }
  }
  size_t first() const { return first_; }
  absl::Span<cuda::TokenEdit> all() { return absl::MakeSpan(edits_).subspan(first_); }

 private:
  const int32_t vocab_size_;
  const size_t first_;
  std::vector<cuda::TokenEdit>& edits_;
  std::vector<uint32_t> places_;  // by id: 1 + where its edit is among this row's, or 0
};

void SeeWindow(const SamplingParams& params, const SamplingState& state, Edits* edits) {
  size_t window = std::numeric_limits<size_t>::max();
  if (params.repetition_window >= 0) window = static_cast<size_t>(params.repetition_window);
  const size_t of_output = std::min(window, state.output.size());
  edits->See(state.output.last(of_output));
  edits->See(state.prompt.last(std::min(window - of_output, state.prompt.size())));
}

void PenalizeOutput(const SamplingParams& params, absl::Span<const int32_t> output, Edits* edits) {
  // First the times a token was seen, exact in a float for as long as answers are.
  for (const int32_t id : output) {
    if (cuda::TokenEdit* edit = edits->Of(id)) edit->subtract += 1.0f;
  }
  for (cuda::TokenEdit& edit : edits->all()) {
    if (edit.subtract == 0) continue;
    edit.subtract = params.frequency_penalty * edit.subtract + params.presence_penalty;
  }
}

}  // namespace

bool DeviceCanSample(const SamplingParams& params, int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > cuda::kSampleVocabMax) return false;
  if (params.temperature < kGreedyTemperature) return true;  // filters leave the greatest alone
  return params.top_k == 0 && params.typical_p >= 1 && params.top_p >= 1 && params.min_p <= 0;
}

cuda::SampleRow PrepareSample(const SamplingParams& params, const SamplingState& state,
                              int32_t vocab_size, std::vector<cuda::TokenEdit>* edits) {
  STRATA_CHECK(DeviceCanSample(params, vocab_size));
  Edits row_edits(vocab_size, edits);
  for (const auto& [id, bias] : params.logit_bias) {
    if (cuda::TokenEdit* edit = row_edits.Of(id)) edit->bias = bias;
  }
  for (const uint32_t id : params.banned_token_ids) row_edits.Ban(id);
  for (const int32_t id : state.suppressed) row_edits.Ban(id);
  if (params.repetition_penalty != 1.0f) SeeWindow(params, state, &row_edits);
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    PenalizeOutput(params, state.output, &row_edits);
  }
  cuda::SampleRow row;
  row.temperature = params.temperature;
  row.repetition_penalty = params.repetition_penalty;
  row.seed = params.seed;
  row.position = state.position;
  row.choice = state.choice;
  row.first_edit = static_cast<int32_t>(row_edits.first());
  row.edit_count = static_cast<int32_t>(row_edits.all().size());
  return row;
}

}  // namespace strata
