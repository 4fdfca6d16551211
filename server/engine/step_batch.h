#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/model.h"
#include "server/engine/sequence.h"
#include "tiering/tiered_cache.h"

namespace strata {

// The rows of one step, as the cache and the model want them, and the logits that come back. Keeps
// its memory from step to step. Engine thread.
class StepBatch {
 public:
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t tokens = 0;
    // Its logits, if the slice reaches the last known token: the next one can be sampled.
    int32_t logits_index = -1;
  };

  StepBatch(int32_t rows_max, int32_t sequences_max, int32_t vocab_size);

  void Clear();
  // The next `tokens` tokens of the sequence that the cache lacks.
  void Add(Sequence* sequence, int32_t tokens);

  absl::Span<const Entry> entries() const { return entries_; }
  absl::Span<const StepSlice> slices() const { return slices_; }
  int32_t rows() const { return static_cast<int32_t>(tokens_.size()); }
  ForwardBatch forward() const { return {tokens_, positions_, logit_rows_}; }
  float* logits() { return logits_.data(); }
  absl::Span<const float> LogitsOf(const Entry& entry) const;

 private:
  const int32_t vocab_size_;
  std::vector<Entry> entries_;
  std::vector<StepSlice> slices_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> logit_rows_;
  std::vector<float> logits_;  // [sequences_max][vocab_size]
};

}  // namespace strata
