#include "model/device_draws.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/draw_filter.h"

namespace strata {

bool DeviceCanSample(const SamplingParams& params, int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > kSampleVocabMax) return false;
  if (params.temperature < kGreedyTemperature) return true;  // filters leave the greatest alone
  return params.typical_p >= 1;
}

int32_t DeviceDraws::Add(const Request& request) {
  STRATA_CHECK(requests_.empty() || requests_.back().logits_index < request.logits_index);
  requests_.push_back(request);
  return static_cast<int32_t>(requests_.size()) - 1;
}

void DeviceDraws::Clear() {
  requests_.clear();
  tokens_.clear();
}

void DeviceDraws::Prepare(int32_t vocab_size) {
  places_.resize(static_cast<size_t>(vocab_size));
  rows_.clear();
  edits_.clear();
  for (const Request& request : requests_) {
    STRATA_CHECK(DeviceCanSample(*request.params, vocab_size));
    first_edit_ = edits_.size();
    rows_.push_back(PrepareRow(request));
    for (const TokenEdit& edit : RowEdits()) places_[static_cast<size_t>(edit.id)] = 0;
  }
}

void DeviceDraws::Answer(absl::Span<const SampledRow> drawn) {
  STRATA_CHECK(drawn.size() == requests_.size());
  tokens_.clear();
  for (const SampledRow& row : drawn) tokens_.push_back({row.id, row.logprob});
}

SampleRow DeviceDraws::PrepareRow(const Request& request) {
  const SamplingParams& params = *request.params;
  const SamplingState& state = request.state;
  const auto ban = [this](int64_t id) {
    if (TokenEdit* edit = EditOf(id)) edit->banned = true;
  };
  for (const auto& [id, bias] : params.logit_bias) {
    if (TokenEdit* edit = EditOf(id)) edit->bias = bias;
  }
  for (const uint32_t id : params.banned_token_ids) ban(id);
  for (const int32_t id : state.suppressed) ban(id);
  if (params.repetition_penalty != 1.0f) SeeWindow(params, state);
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    PenalizeOutput(params, state.output);
  }
  SampleRow row;
  row.logits_row = request.logits_index;
  row.temperature = params.temperature;
  row.repetition_penalty = params.repetition_penalty;
  row.seed = params.seed;
  row.position = state.position;
  row.choice = state.choice;
  row.first_edit = static_cast<int32_t>(first_edit_);
  row.edit_count = static_cast<int32_t>(RowEdits().size());
  row.with_logprob = request.with_logprob;
  if (params.top_k < places_.size()) row.top_k = params.top_k;
  if (params.top_p < 1) row.top_p = MassFraction(params.top_p);
  if (params.min_p > 0) row.least_weight = LeastWeight(params.min_p);
  return row;
}

void DeviceDraws::SeeWindow(const SamplingParams& params, const SamplingState& state) {
  size_t window = std::numeric_limits<size_t>::max();
  if (params.repetition_window >= 0) window = static_cast<size_t>(params.repetition_window);
  const auto see = [this](absl::Span<const int32_t> ids) {
    for (const int32_t id : ids) {
      if (TokenEdit* edit = EditOf(id)) edit->seen = true;
    }
  };
  const size_t of_output = std::min(window, state.output.size());
  see(state.output.last(of_output));
  see(state.prompt.last(std::min(window - of_output, state.prompt.size())));
}

void DeviceDraws::PenalizeOutput(const SamplingParams& params, absl::Span<const int32_t> output) {
  // First the times a token was seen, exact in a float for as long as answers are.
  for (const int32_t id : output) {
    if (TokenEdit* edit = EditOf(id)) edit->subtract += 1.0f;
  }
  for (TokenEdit& edit : RowEdits()) {
    if (edit.subtract == 0) continue;
    edit.subtract = params.frequency_penalty * edit.subtract + params.presence_penalty;
  }
}

TokenEdit* DeviceDraws::EditOf(int64_t id) {
  if (id < 0 || id >= static_cast<int64_t>(places_.size())) return nullptr;
  uint32_t& place = places_[static_cast<size_t>(id)];
  if (place == 0) {
    edits_.emplace_back().id = static_cast<int32_t>(id);
    place = static_cast<uint32_t>(RowEdits().size());
  }
  return &RowEdits()[place - 1];
}

}  // namespace strata
