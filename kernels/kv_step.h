#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/linear_ops.h"

namespace strata {

// One layer's view of the cache during a step.
struct LayerKv {
  absl::Span<const AppendTarget> targets;         // one a row of the step
  absl::Span<const AttentionSequence> sequences;  // in row order; runs include the appended tokens
};

// How a forward pass reaches the KV cache without knowing tiers: the pass calls BeginLayer for
// layers 0, 1, 2, ... in order. Implementations have the layer's pages resident when it returns and
// may fetch later layers meanwhile. The spans hold until the next call. Engine thread.
class KvStep {
 public:
  virtual ~KvStep() = default;

  // DataLoss (or another error) when a page cannot be brought in intact: the step must be
  // abandoned. Nothing is lost by that: appending the same rows again writes the same bytes.
  virtual absl::StatusOr<LayerKv> BeginLayer(int32_t layer) = 0;
};

}  // namespace strata
