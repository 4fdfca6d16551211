#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/kv_step.h"
#include "tiering/residency.h"
#include "tiering/sequence_state.h"
#include "tiering/tier_plan.h"
#include "tiering/tiered_cache.h"

namespace strata {

// The pages of one step, layer by layer: finds every block of the step's sequences once, then names
// its page in each layer as runs. Keeps its memory from step to step.
//   T3: the runs of a sequence partition its context, in order: no token missing, none twice.
class StepView {
 public:
  StepView(const TierPlan* plan, const TierOptions* options, Residency* residency)
      : plan_(*plan), formats_(options->formats), residency_(*residency) {}

  // One sequence of the step: its state and new tokens.
  struct Part {
    SequenceState* sequence = nullptr;
    int32_t first = 0;
    int32_t tokens = 0;
  };

  // Looks up the blocks. Nothing may move until the step ends.
  void Begin(absl::Span<const Part> parts);
  // The records that the step reads, in order.
  absl::Span<const SlotId> cold_records() const { return cold_records_; }
  const std::vector<Part>& parts() const { return parts_; }

  // The layer's targets and runs. Units of the layer's group must have come. Holds until the next
  // call.
  LayerKv Layer(int32_t layer);

 private:
  // Where a block is read from, in every layer.
  enum class Source : uint8_t { kHot, kWarm, kWarmAsCold, kCold };
  struct Block {
    const std::byte* slot = nullptr;  // null for kCold
    SlotId record;
    Source source = Source::kHot;
  };

  void Find(const Part& part);
  Block Locate(const SequenceState& sequence, int32_t index) const;
  PageRun Page(const Block& block, int32_t layer, KvPageView* page) const;
  void AddRuns(const Part& part, size_t* next_block, int32_t layer);
  void AddTargets(const Part& part, int32_t layer);

  const TierPlan& plan_;
  const TierFormats& formats_;
  Residency& residency_;
  std::vector<Part> parts_;
  std::vector<Block> blocks_;  // of all parts, in order
  std::vector<SlotId> cold_records_;

  std::vector<KvPageView> pages_;  // one a block
  std::vector<PageRun> runs_;
  std::vector<size_t> run_ends_;  // one a part
  std::vector<AttentionSequence> sequences_;
  std::vector<AppendTarget> targets_;
};

}  // namespace strata
