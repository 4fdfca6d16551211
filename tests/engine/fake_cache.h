#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tiering/tiered_cache.h"

namespace strata {

struct FakeCacheOptions {
  KvGeometry geometry;
  int32_t capacity_blocks = 1024;  // of the hot tier, the only one that holds anything
  int32_t piece_tokens = 128;
  int32_t max_sequences = 16;
  int32_t max_context = 0;
  // Polls after which released blocks are free again, as if the mover were still reading them.
  int32_t release_polls = 0;
};

// Everything hot, in real F16 pages, with every rule of TieredCache's contract checked: slices
// continue their sequence, stay within a piece and within the reservation; one step at a time.
// Pages are scribbled over when they are freed. Faults come from hooks.
class FakeCache : public TieredCache {
 public:
  explicit FakeCache(const FakeCacheOptions& options);
  ~FakeCache() override;

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
  const TierOptions& options() const override { return tier_options_; }

  // Whether a slice's pages turn out bad in the last layer. Asked once a slice and step.
  std::function<bool(const StepSlice&)> damages;
  // An error here fails the whole PrepareStep, as a tier that is full would.
  std::function<absl::Status(const StepSlice&)> refuses;

  uint64_t steps_prepared() const { return steps_prepared_; }

 private:
  class Step;
  struct Entry {
    int32_t reserved_blocks = 0;
    int32_t tokens = 0;
    std::vector<int32_t> blocks;
  };

  size_t PageBytes() const;
  std::byte* Page(int32_t block, int32_t layer);
  void Scribble(int32_t block);
  void FreeBlocks(Entry* entry);

  const FakeCacheOptions options_;
  TierOptions tier_options_;
  std::vector<std::byte> pages_;  // [block][layer]
  std::vector<int32_t> free_;
  struct Returning {
    int32_t polls;
    int32_t reserved;
    std::vector<int32_t> blocks;
  };
  std::vector<Returning> returning_;
  int32_t reserved_blocks_ = 0;
  SequenceHandle next_handle_ = 1;
  std::map<SequenceHandle, Entry> sequences_;
  std::vector<SequenceHandle> damaged_;
  std::vector<StepSlice> slices_;
  std::unique_ptr<Step> step_;
  uint64_t steps_prepared_ = 0;
};

}  // namespace strata
