#include "server/engine/step_batch.h"

#include "base/check.h"

namespace strata {

StepBatch::StepBatch(int32_t rows_max, int32_t sequences_max, int32_t vocab_size)
    : vocab_size_(vocab_size), logits_(size_t{1} * sequences_max * vocab_size) {
  entries_.reserve(sequences_max);
  slices_.reserve(sequences_max);
  logit_rows_.reserve(sequences_max);
  tokens_.reserve(rows_max);
  positions_.reserve(rows_max);
}

void StepBatch::Clear() {
  entries_.clear();
  slices_.clear();
  tokens_.clear();
  positions_.clear();
  logit_rows_.clear();
  draws_.Clear();
}

void StepBatch::Add(Sequence* sequence, int32_t tokens) {
  const int32_t first = sequence->computed();
  STRATA_CHECK(tokens > 0 && first + tokens <= sequence->known());
  slices_.push_back({sequence->progress.handle, first, tokens});
  for (int32_t position = first; position < first + tokens; ++position) {
    tokens_.push_back(sequence->tokens()[position]);
    positions_.push_back(position);
  }
  Entry entry;
  entry.sequence = sequence;
  entry.tokens = tokens;
  if (first + tokens == sequence->known()) {
    entry.logits_index = static_cast<int32_t>(logit_rows_.size());
    logit_rows_.push_back(rows() - 1);
  }
  entries_.push_back(entry);
}

void StepBatch::DrawOnDevice(size_t index) {
  Entry& entry = entries_[index];
  STRATA_CHECK(entry.logits_index >= 0 && entry.draw_index < 0);
  const Request& request = entry.sequence->request();
  entry.draw_index = draws_.Add({.logits_index = entry.logits_index,
                                 .params = &request.sampling,
                                 .state = entry.sequence->sampling_state(),
                                 .with_logprob = request.logprobs});
}

const SampledToken& StepBatch::DrawnTokenOf(const Entry& entry) const {
  STRATA_CHECK(entry.draw_index >= 0);
  return draws_.token(entry.draw_index);
}

absl::Span<const float> StepBatch::LogitsOf(const Entry& entry) const {
  STRATA_CHECK(entry.logits_index >= 0 && entry.draw_index < 0);
  return absl::MakeConstSpan(logits_).subspan(size_t{1} * entry.logits_index * vocab_size_,
                                              vocab_size_);
}

}  // namespace strata
