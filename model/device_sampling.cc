#include "model/device_sampling.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/check.h"

namespace strata {
namespace {

// The edits of one row, by id.
class Edits {
 public:
  explicit Edits(int32_t vocab_size) : vocab_size_(vocab_size) {}

  // Null for an id outside the vocabulary, which no step of Sampler looks at either.
  cuda::TokenEdit* Of(int64_t id) {
    if (id < 0 || id >= vocab_size_) return nullptr;
    cuda::TokenEdit& edit = by_id_[static_cast<int32_t>(id)];
    edit.id = static_cast<int32_t>(id);
    return &edit;
  }
  void Ban(int64_t id) {
    if (cuda::TokenEdit* edit = Of(id)) edit->banned = true;
  }
  void See(absl::Span<const int32_t> ids) {
    for (const int32_t id : ids) {
      if (cuda::TokenEdit* edit = Of(id)) edit->seen = true;
    }
  }
  void AppendTo(std::vector<cuda::TokenEdit>* edits) const {
    for (const auto& [id, edit] : by_id_) edits->push_back(edit);
  }

 private:
  int32_t vocab_size_;
  std::map<int32_t, cuda::TokenEdit> by_id_;
};

void SeeWindow(const SamplingParams& params, const SamplingState& state, Edits* edits) {
  size_t window = std::numeric_limits<size_t>::max();
  if (params.repetition_window >= 0) window = static_cast<size_t>(params.repetition_window);
  const size_t of_output = std::min(window, state.output.size());
  edits->See(state.output.last(of_output));
  edits->See(state.prompt.last(std::min(window - of_output, state.prompt.size())));
}

void PenalizeOutput(const SamplingParams& params, absl::Span<const int32_t> output, Edits* edits) {
  std::map<int32_t, float> times;
  for (const int32_t id : output) times[id] += 1.0f;
  for (const auto& [id, count] : times) {
    if (cuda::TokenEdit* edit = edits->Of(id)) {
      edit->subtract = params.frequency_penalty * count + params.presence_penalty;
    }
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
  Edits row_edits(vocab_size);
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
  row.first_edit = static_cast<int32_t>(edits->size());
  row_edits.AppendTo(edits);
  row.edit_count = static_cast<int32_t>(edits->size()) - row.first_edit;
  return row;
}

}  // namespace strata
