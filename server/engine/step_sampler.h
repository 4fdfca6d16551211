#pragma once

#include <vector>

#include "absl/types/span.h"
#include "base/thread_pool.h"
#include "model/sampler.h"
#include "server/engine/step_batch.h"

namespace strata {

// Draws the tokens of one step, sequence by sequence on all threads of the pool: over a whole
// vocabulary a draw takes as long as a layer does, and a step has one for every sequence. A draw
// depends on its sequence alone, so which thread makes it changes nothing. Engine thread.
class StepSampler {
 public:
  // `pool` may be null: then the caller draws alone. It must outlive the sampler.
  explicit StepSampler(ThreadPool* pool)
      : pool_(pool), samplers_(pool == nullptr ? 1 : pool->threads()) {}

  // The token of each of the batch's entries, in their order; one that has no logits gets none (an
  // id of -1). Sequences have advanced over the step's tokens. Valid until the next call.
  absl::Span<const SampledToken> Draw(const StepBatch& batch);

 private:
  ThreadPool* const pool_;
  std::vector<Sampler> samplers_;  // one a thread
  std::vector<SampledToken> tokens_;
};

}  // namespace strata
