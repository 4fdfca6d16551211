#pragma once

#include <vector>

#include "absl/types/span.h"
#include "base/thread_pool.h"
#include "model/model.h"
#include "model/sampler.h"
#include "server/engine/step_batch.h"

namespace strata {

// Who draws the tokens of one step. The device, where it can: then ids come from it and not logits.
// The others are drawn here, sequence by sequence on all threads of the pool: over a whole
// vocabulary a draw takes as long as a layer does. A draw depends on its sequence alone, and is the
// same token wherever it is made. Engine thread.
class StepSampler {
 public:
  // `pool` may be null: then the caller draws alone. It and the model must outlive the sampler.
  StepSampler(const Model* model, ThreadPool* pool)
      : model_(*model), pool_(pool), samplers_(pool == nullptr ? 1 : pool->threads()) {}

  // Before the step: leaves to the device what it can draw.
  void Plan(StepBatch* batch) const;

  // After it: the token of each of the batch's entries, in their order; one that has no logits gets
  // none (an id of -1). Valid until the next call.
  absl::Span<const SampledToken> Draw(const StepBatch& batch);

 private:
  const Model& model_;
  ThreadPool* const pool_;
  std::vector<Sampler> samplers_;  // one a thread
  std::vector<SampledToken> tokens_;
  std::vector<size_t> to_draw_;  // entries whose logits are here
};

}  // namespace strata
