#pragma once

#include <memory>
#include <vector>

#include "tiering/admission.h"
#include "tiering/residency.h"
#include "tiering/sequence_state.h"
#include "tiering/step_view.h"
#include "tiering/tier_plan.h"
#include "tiering/tiered_cache.h"

namespace strata {

// The façade: checks what the engine asks and hands it to admission, residency and the step view.
class TieredCacheImpl final : public TieredCache, private KvStep {
 public:
  static absl::StatusOr<std::unique_ptr<TieredCacheImpl>> Create(
      const TierOptions& options, const PageCodec* codec, const TierEnvironment& environment);

  absl::StatusOr<SequenceHandle> Admit(int32_t max_tokens, const PositionalPolicy& policy) override;
  void Release(SequenceHandle sequence) override;
  void Reset(SequenceHandle sequence) override;
  absl::StatusOr<KvStep*> PrepareStep(absl::Span<const StepSlice> slices) override;
  void FinishStep(bool completed) override;
  std::vector<SequenceHandle> TakeDamaged() override;
  void Poll() override;
  SequenceUsage Usage(SequenceHandle sequence) const override;
  CacheSnapshot Snapshot() const override;
  void CheckInvariants() const override;
  const TierOptions& options() const override { return options_; }

  // Waits until nothing is being moved, written, erased or read: for tests and tools.
  void WaitUntilIdle();
  const Residency& residency() const { return *residency_; }

 private:
  TieredCacheImpl(const TierOptions& options, const TierPlan& plan, DeviceMemory* memory);

  absl::StatusOr<LayerKv> BeginLayer(int32_t layer) override;

  SequenceState& Find(SequenceHandle handle);
  const SequenceState& Find(SequenceHandle handle) const;
  absl::Status CheckSlice(const StepSlice& slice, SequenceState** sequence);
  void CountAttended();
  void CountLookups();
  absl::Status EnterGroup(int32_t group);
  absl::Status AwaitGroup();
  absl::Status DamagedError() const;

  const TierOptions options_;
  const TierPlan plan_;
  DeviceMemory* const memory_;
  std::vector<SequenceState> sequences_;  // fixed size: blocks name their owner by index
  uint32_t admissions_ = 0;
  Admission admission_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<StepView> view_;
  std::vector<StepView::Part> parts_;  // of the step being prepared
  bool in_step_ = false;
  int32_t next_layer_ = 0;
  int32_t group_ = -1;                     // layer group entered
  std::chrono::nanoseconds step_wait_{0};  // of this step for cold pages
  DurationHistogram fetch_wait_;
  std::array<uint64_t, kTierCount> attended_{};
  std::array<uint64_t, kTierCount> lookups_{};  // pages read in place, by where they lie
};

}  // namespace strata
