#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/model.h"
#include "tiering/tiered_cache.h"

namespace strata::bench {

// Drives one sequence through a model and a cache, step by step, without an engine: what benchmarks
// and evaluations measure is the step itself.
class SequenceRunner {
 public:
  // Called after a step with the logits of its rows: first position, then [rows][vocab].
  using LogitsCallback = std::function<void(int32_t first, absl::Span<const float> logits)>;

  SequenceRunner(Model* model, TieredCache* cache, SequenceHandle sequence)
      : model_(model), cache_(cache), sequence_(sequence) {}

  // Appends tokens in pieces that never straddle a multiple of the piece size. With a callback, the
  // logits of every row are computed; without, none are.
  absl::Status Prefill(absl::Span<const int32_t> tokens, const LogitsCallback& callback = nullptr);

  // Appends one token and returns the logits after it, valid until the next call.
  absl::StatusOr<absl::Span<const float>> Decode(int32_t token);

  int32_t position() const { return position_; }

 private:
  absl::Status Step(absl::Span<const int32_t> tokens, absl::Span<const int32_t> logit_rows);

  Model* model_;
  TieredCache* cache_;
  SequenceHandle sequence_;
  int32_t position_ = 0;
  std::vector<int32_t> positions_;
  std::vector<float> logits_;
};

}  // namespace strata::bench
