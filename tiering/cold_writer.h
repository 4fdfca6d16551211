#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "cache/ids.h"
#include "cache/slot_allocator.h"
#include "tiering/cold_store.h"

namespace strata {

// Which records are taken, written and erased, and how hard the disk may be driven: buffers in
// flight, a byte rate, and a pause that doubles after every failure. Engine thread.
//   W1: a record is free, or taken, or being erased; it is free again only when no descriptor on
//   disk names it.
class ColdWriter {
 public:
  struct Options {
    int32_t buffers = 4;          // writes in flight
    size_t bytes_per_second = 0;  // 0: unlimited (M3)
    // A write in flight for longer is not worth waiting for.
    std::chrono::milliseconds patience{10'000};
  };
  // What became of a write.
  enum class Outcome : uint8_t {
    kPublished,
    kFailed,         // the record is free again
    kFailedErasing,  // it will be, once its descriptor is surely cleared
  };

  static absl::StatusOr<std::unique_ptr<ColdWriter>> Create(ColdStore* store, Options options,
                                                            const Clock* clock);

  // Whether Begin would give an operation now.
  bool CanBegin() const;
  // Takes a record and a buffer for `block`; null when it cannot be now. The caller has the
  // buffer filled from `source` and the operation handed to the store.
  ColdStore::WriteOp* Begin(BlockId block, const std::byte* source);
  // The operation came out of the completion queue.
  Outcome Finish(ColdStore::WriteOp* op);

  // Clears a published record; it is free when an erasure of it has finished.
  void Erase(SlotId record);
  // Returns whether the record is free now; if not, it is tried again.
  bool FinishErase(ColdStore::EraseOp* op);
  // A read failed at the disk: nothing more is entrusted to it for a while.
  void NoteReadError();
  // Starts erasures that wait. Cheap; call often.
  void Pump();

  int32_t records_taken() const { return records_.used(); }
  // Records whose descriptor is on disk, as far as is known.
  int32_t published() const { return published_; }
  bool InFlight() const { return idle_writes_.size() < writes_.size() || erases_in_flight_ > 0; }
  // Whether it is worth waiting for a record or buffer: something is in flight, or only the byte
  // rate holds the next write back.
  bool Progressing() const;
  // The disk fails, or a write has taken too long.
  bool Degraded() const;
  const SlotAllocator<SlotId>& records() const { return records_; }

 private:
  static constexpr int32_t kErasesMax = 16;

  ColdWriter(ColdStore* store, Options options, const Clock* clock);
  void Fail();
  void Succeed();
  // A write has been in flight for longer than `limit`.
  bool AnyWriteOlderThan(std::chrono::milliseconds limit) const;

  ColdStore* const store_;
  const Options options_;
  const Clock* const clock_;
  SlotAllocator<SlotId> records_;
  using RealTime = std::chrono::steady_clock::time_point;

  std::vector<std::unique_ptr<ColdStore::WriteOp>> writes_;
  std::vector<ColdStore::WriteOp*> idle_writes_;
  // By WriteOp::buffer_index: since when it is in flight. The operation itself belongs to other
  // threads then.
  std::vector<std::optional<RealTime>> since_;
  std::vector<std::unique_ptr<ColdStore::EraseOp>> erases_;
  std::vector<ColdStore::EraseOp*> idle_erases_;
  std::vector<SlotId> to_erase_;
  int32_t erases_in_flight_ = 0;
  int32_t published_ = 0;
  Clock::TimePoint next_write_;         // by the byte rate
  Clock::TimePoint distrust_;           // until then, after a failed read
  Clock::TimePoint retry_;              // by the pause after a failure
  std::chrono::milliseconds pause_{0};  // 0: the last transfer succeeded
};

}  // namespace strata
