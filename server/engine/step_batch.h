#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/device_draws.h"
#include "model/model.h"
#include "server/engine/sequence.h"
#include "tiering/tiered_cache.h"

namespace strata {

// The rows of one step, as the cache and the model want them, and what comes back: logits, and
// tokens that the device draws. Keeps its memory from step to step. Engine thread.
class StepBatch {
 public:
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t tokens = 0;
    // Its logits, if the slice reaches the last known token: the next one can be sampled.
    int32_t logits_index = -1;
    // Its token among the draws, if the device draws it; its logits stay where they are then.
    int32_t draw_index = -1;
  };

  StepBatch(int32_t rows_max, int32_t sequences_max, int32_t vocab_size);

  void Clear();
  // The next `tokens` tokens of the sequence that the cache lacks.
  void Add(Sequence* sequence, int32_t tokens);

  // Leaves the token of entry `index`, which has logits, to the device. In ascending order.
  void DrawOnDevice(size_t index);

  absl::Span<const Entry> entries() const { return entries_; }
  absl::Span<const StepSlice> slices() const { return slices_; }
  int32_t rows() const { return static_cast<int32_t>(tokens_.size()); }
  ForwardBatch forward() { return {tokens_, positions_, logit_rows_, &draws_}; }
  float* logits() { return logits_.data(); }
  absl::Span<const float> LogitsOf(const Entry& entry) const;
  const SampledToken& DrawnTokenOf(const Entry& entry) const;

 private:
  const int32_t vocab_size_;
  std::vector<Entry> entries_;
  std::vector<StepSlice> slices_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> logit_rows_;
  std::vector<float> logits_;  // [sequences_max][vocab_size]
  DeviceDraws draws_;
};

}  // namespace strata
