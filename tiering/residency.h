#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "cache/block_directory.h"
#include "cache/page_pool.h"
#include "kernels/device_memory.h"
#include "kernels/page_codec.h"
#include "tiering/admission.h"
#include "tiering/cold_staging.h"
#include "tiering/cold_store.h"
#include "tiering/cold_writer.h"
#include "tiering/completion_queue.h"
#include "tiering/mover.h"
#include "tiering/sequence_state.h"
#include "tiering/tier_plan.h"

namespace strata {

// What the machine gives: replaced in tests.
struct TierEnvironment {
  DeviceMemory* memory = HostMemory();  // of the backend that appends and attends
  const Clock* clock = Clock::Real();
  IoEngineFactory make_io = MakeIoEngine;
  bool direct_io = true;
  // How long a step waits for the disk without anything coming of it before it gives up.
  std::chrono::milliseconds patience{10'000};
};

// Where every block lies, and the moves that carry it down: pools, directory, mover and cold tier.
// Moves are transactions: take the target slot, BeginMove, copy elsewhere, CommitMove, free the
// source slot. hot -> warm is encoded as soon as it is known that the next piece needs it and
// committed when that piece begins; warm -> cold begins when the policy reads the block as cold and
// commits between steps once its record is published. Engine thread.
//   M1: a step waits for the mover only when the encoding its piece needs is unfinished, and for
//   the disk only when no warm slot is left; both are counted.
class Residency {
 public:
  // `sequences` is the caller's table; blocks name their owner by index in it.
  static absl::StatusOr<std::unique_ptr<Residency>> Create(const TierOptions& options,
                                                           const TierPlan* plan,
                                                           const PageCodec* codec,
                                                           const TierEnvironment& environment,
                                                           std::vector<SequenceState>* sequences,
                                                           Admission* admission);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Gives the sequence hot blocks up to `blocks`.
  absl::Status Extend(SequenceState* sequence, int32_t blocks);
  // Takes out of the hot tier what the policy does not read as hot in the piece at `piece_block`.
  absl::Status CommitDue(SequenceState* sequence, int32_t piece_block);
  // Counts `tokens` new tokens, sealing blocks.
  void Append(SequenceState* sequence, int32_t tokens);
  // Hands the mover what leaves the hot tier at the next piece.
  void EncodeAhead(SequenceState* sequence);
  // Drops every block and starts the sequence over.
  void DropAll(SequenceState* sequence);

  // Takes in what the mover and the disk have done; starts writes and erasures. `in_step`: commits
  // to the cold tier are put off, so that no page a step reads changes its place.
  void Drain(bool in_step);
  // As Drain, but waits for something to come in; false when nothing did within `timeout`.
  bool WaitAndDrain(bool in_step, std::chrono::nanoseconds timeout);

  const BlockDirectory& directory() const { return directory_; }
  ColdStaging* staging() { return staging_.get(); }  // null without a cold tier
  // Its home slot: hot in device memory, or warm in pinned memory.
  const std::byte* BytesOf(const BlockInfo& block);
  std::byte* HotBytes(const BlockInfo& block);
  // Gives up on a cold block whose pages did not come.
  void MarkLost(SlotId record);

  bool cold_degraded() const { return writer_ != nullptr && writer_->Degraded(); }
  void AddTo(CacheSnapshot* snapshot) const;
  void CheckInvariants() const;
  std::chrono::milliseconds patience() const { return environment_.patience; }
  // Nothing is being copied, written, erased or read.
  bool Idle() const;

 private:
  static constexpr int32_t kEncodesMax = 256;

  Residency(const TierOptions& options, const TierPlan* plan, const TierEnvironment& environment,
            std::vector<SequenceState>* sequences, Admission* admission, PagePool<SlotId> hot,
            PagePool<SlotId> warm);
  absl::Status OpenCold(const TierOptions& options);

  SequenceState& OwnerOf(const BlockInfo& block) { return (*sequences_)[block.owner]; }
  PagePool<SlotId>& Pool(Tier tier) { return tier == Tier::kHot ? hot_ : warm_; }
  bool TakeSlot(Tier tier, SequenceState* sequence, SlotId* slot);
  absl::Status WaitForSlot(Tier tier, SequenceState* sequence, SlotId* slot);
  void NotePeak(Tier tier, SequenceState* sequence);
  absl::Status Exhausted(Tier tier, const SequenceState& sequence) const;

  bool HasEncodeJob() const { return !idle_encodes_.empty(); }
  void StartEncode(BlockId id, SlotId target);
  void StartEncodes(SequenceState* sequence, int32_t piece_block);
  absl::Status StartDueEncode(SequenceState* sequence, BlockId id);
  void CommitEncoded(SequenceState* sequence, BlockId id);

  void PumpWrites();
  bool StartWrite(SequenceState* sequence, BlockId id);
  void CommitWritten();

  void Dispatch(Completion* all, bool in_step);
  void OnEncoded(EncodeJob* job);
  void OnWritten(ColdStore::WriteOp* op);
  void OnErased(ColdStore::EraseOp* op);
  void OnRead(ColdStore::ReadOp* op);

  void Drop(SequenceState* sequence, BlockId id);
  void Reclaim(BlockId id, SequenceState* owner);
  void FreeSlot(Tier tier, SlotId slot, SequenceState* owner);
  void CountLink(Link link, uint64_t bytes, int32_t layers, std::chrono::nanoseconds took,
                 SequenceState* sequence);

  const TierPlan& plan_;
  const TierEnvironment environment_;
  const bool cold_enabled_;
  std::vector<SequenceState>* const sequences_;
  Admission* const admission_;
  BlockDirectory directory_;
  PagePool<SlotId> hot_;
  PagePool<SlotId> warm_;
  CompletionQueue completions_;
  std::vector<std::unique_ptr<EncodeJob>> encodes_;
  std::vector<EncodeJob*> idle_encodes_;
  std::vector<BlockId> written_;  // published during a step, to commit after it
  std::vector<std::chrono::nanoseconds> encode_took_;  // by warm slot, until committed
  std::vector<std::chrono::nanoseconds> write_took_;   // by record, until committed
  std::vector<BlockId> block_of_record_;

  std::array<uint64_t, kTierCount> tokens_{};
  CacheSnapshot counters_;  // only what is counted, not what is looked up

  std::unique_ptr<ColdWriter> writer_;  // outlives the operations it owns: the store below
  std::unique_ptr<ColdStaging> staging_;
  std::unique_ptr<ColdStore> store_;  // stops before writer_ and staging_ go
  std::unique_ptr<Mover> mover_;      // stops first: it submits to the store
};

}  // namespace strata
