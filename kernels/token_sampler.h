#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/sample_types.h"

namespace strata {

// Draws tokens where the logits lie, so that ids cross the link and logits do not: those that
// Sampler (model/sampler.h) would draw, to the bit of every decision. Calls run in the order of
// LinearOps' and only enqueue. Engine thread.
class TokenSampler {
 public:
  virtual ~TokenSampler() = default;

  // Takes the scratch of calls of up to `rows` rows. ResourceExhausted when it cannot be had.
  virtual absl::Status Reserve(int32_t rows, int32_t vocab_size) = 0;

  // out[i] = the token of rows[i]. logits: [*][vocab_size], on the device, of at most
  // kSampleVocabMax tokens. `rows` and `edits` (which rows index) may change when the call returns;
  // their ids are within the vocabulary. `out` is pinned memory (device_memory.h) and is written
  // when the device is done.
  virtual void Sample(const float* logits, int32_t vocab_size, absl::Span<const SampleRow> rows,
                      absl::Span<const TokenEdit> edits, SampledRow* out) = 0;
};

}  // namespace strata
