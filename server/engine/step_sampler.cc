#include "server/engine/step_sampler.h"

#include <cstdint>

#include "model/device_draws.h"
#include "server/engine/sequence.h"

namespace strata {

void StepSampler::Plan(StepBatch* batch) const {
  if (!model_.draws_tokens()) return;
  for (size_t i = 0; i < batch->entries().size(); ++i) {
    const StepBatch::Entry& entry = batch->entries()[i];
    if (entry.logits_index < 0) continue;
    if (!DeviceCanSample(entry.sequence->request().sampling, model_.config().vocab_size)) continue;
    batch->DrawOnDevice(i);
  }
}

absl::Span<const SampledToken> StepSampler::Draw(const StepBatch& batch) {
  tokens_.assign(batch.entries().size(), {.id = -1});
  to_draw_.clear();
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const StepBatch::Entry& entry = batch.entries()[i];
    if (entry.draw_index >= 0) {
      tokens_[i] = batch.DrawnTokenOf(entry);
    } else if (entry.logits_index >= 0) {
      to_draw_.push_back(i);
    }
  }
  const auto draw = [&](int64_t n, int thread) {
    const size_t i = to_draw_[static_cast<size_t>(n)];
    const StepBatch::Entry& entry = batch.entries()[i];
    const Request& request = entry.sequence->request();
    tokens_[i] = samplers_[thread].Sample(request.sampling, entry.sequence->sampling_state(),
                                          batch.LogitsOf(entry), request.logprobs);
  };
  const auto count = static_cast<int64_t>(to_draw_.size());
  if (pool_ != nullptr) {
    pool_->ParallelFor(count, draw);
  } else {
    for (int64_t n = 0; n < count; ++n) draw(n, 0);
  }
  return tokens_;
}

}  // namespace strata
