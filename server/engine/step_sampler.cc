#include "server/engine/step_sampler.h"

#include <cstdint>

#include "server/engine/sequence.h"

namespace strata {

absl::Span<const SampledToken> StepSampler::Draw(const StepBatch& batch) {
  const auto& entries = batch.entries();
  const auto count = static_cast<int64_t>(entries.size());
  tokens_.assign(entries.size(), {.id = -1});
  const auto draw = [&](int64_t i, int thread) {
    const StepBatch::Entry& entry = entries[i];
    if (entry.logits_index < 0) return;
    const Request& request = entry.sequence->request();
    tokens_[i] = samplers_[thread].Sample(request.sampling, entry.sequence->sampling_state(),
                                          batch.LogitsOf(entry), request.logprobs);
  };
  if (pool_ != nullptr) {
    pool_->ParallelFor(count, draw);
  } else {
    for (int64_t i = 0; i < count; ++i) draw(i, 0);
  }
  return tokens_;
}

}  // namespace strata
