#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/aligned_buffer.h"
#include "cache/ids.h"
#include "cache/layout/record_layout.h"
#include "tiering/cold_format.h"
#include "tiering/completion_queue.h"
#include "tiering/io_engine.h"
#include "tiering/tier_options.h"

namespace strata {

struct ColdStoreOptions {
  std::string path;
  size_t bytes_max = 0;  // of the file, descriptors included
  cold_format::Identity identity;
  TierFormats formats;
  const RecordLayout* layout = nullptr;  // outlives the store
  std::string io_engine = "auto";
  int32_t io_depth = 64;
  bool direct = true;  // O_DIRECT where the file system has it
  IoEngineFactory make_io = MakeIoEngine;
};

// What a look at a store's file shows, without opening it for use.
struct ColdInspection {
  cold_format::Identity identity;
  uint64_t record_bytes = 0;
  uint64_t records = 0;  // published
  uint64_t bytes = 0;    // records * record_bytes
  uint64_t damaged_descriptors =
      0;                         // sectors that are neither valid, nor empty, nor of an old epoch
  uint64_t damaged_records = 0;  // published records whose data fails its CRC; if verified
};

// The cold tier's bytes: one preallocated file (cold_format.h), mode 0600, locked against other
// processes. Knows records, not blocks: who owns which record is the caller's.
//   S1: every operation completes exactly once, on the completion queue. S2: a read gives what was
//   last written and published there, or kCorrupt or kIoError: never stale, never partial, because
//   every read is checked against the CRC of its group. S4: a record's data is overwritten only
//   while no descriptor on disk names it.
// Transfers that fail or come up short are repeated a few times before they count as failed.
class ColdStore {
 public:
  enum class Result : uint8_t { kOk, kIoError, kCorrupt };

  // Common to reads, writes and erasures. The caller owns operations and leaves them alone until
  // they come out of the completion queue; the store must outlive those in flight.
  struct Operation : IoRequest, Completion {
    using Completion::Completion;
    ColdStore* store = nullptr;
    SlotId record;
    Result result = Result::kOk;
    int error = 0;  // errno of the last failure; 0 for a short transfer
    int32_t attempts = 0;
    std::chrono::steady_clock::time_point begun;
    std::chrono::nanoseconds took{0};

    void Begin(ColdStore* owner);
    // Fails, or tries again while attempts are left.
    void Retry(Result why, int errno_value);
    void Deliver(Result outcome);
  };
  struct ReadOp final : Operation {
    ReadOp() : Operation(Kind::kRead) {}
    void Complete(int64_t transferred) override;
    int32_t group = 0;
    uint32_t expected_crc = 0;
    UnitId unit;  // the caller's
  };
  struct WriteOp final : Operation {
    WriteOp() : Operation(Kind::kWritten) {}
    void Complete(int64_t transferred) override;
    bool published_maybe = false;  // failed, but the descriptor may have reached the disk
    AlignedBuffer buffer;          // a record's bytes; padding zero
    AlignedBuffer sector;          // its descriptor
    int32_t buffer_index = 0;      // the caller's
    BlockId block;                 // the caller's
    const std::byte* source = nullptr;
  };
  struct EraseOp final : Operation {
    EraseOp() : Operation(Kind::kErased) {}
    void Complete(int64_t transferred) override;
  };

  // Creates the file or takes over one that an earlier run left, dropping its records. Errors:
  // FailedPrecondition for a file that is not a Strata cold store (never touched) or is in use by
  // another process, ResourceExhausted when the disk cannot hold it, saying how much fits.
  static absl::StatusOr<std::unique_ptr<ColdStore>> Open(ColdStoreOptions options,
                                                         CompletionQueue* completions);
  // Reads the file of a store, open or not. With `verify`, also checks every record's data.
  static absl::StatusOr<ColdInspection> Inspect(const std::string& path, bool verify);

  ~ColdStore();  // waits for what is in flight
  ColdStore(const ColdStore&) = delete;
  ColdStore& operator=(const ColdStore&) = delete;

  int32_t records() const { return static_cast<int32_t>(superblock_.record_count); }
  uint64_t record_bytes() const { return superblock_.record_bytes; }
  absl::string_view io_engine() const { return io_->name(); }
  bool direct() const { return direct_; }
  // What was found at the path and done with it; empty for a new file.
  const std::string& note() const { return note_; }

  // Allocates the buffers of an operation.
  absl::Status Prepare(WriteOp* op) const;

  // Any thread. Writes op->buffer as op->record, then its descriptor.
  void Write(WriteOp* op);
  // Engine thread, after Write completed with kOk: makes the record readable.
  void Publish(const WriteOp& op);
  // Engine thread. Reads group op->group of the published op->record to `target`.
  void Read(ReadOp* op, std::byte* target);
  // Engine thread. Clears the record's descriptor; its slot may be reused once that completed kOk.
  void Erase(EraseOp* op);

  IoEngine::Counters io_counters() const { return io_->counters(); }
  // Transfers that failed or came up short, repeated or not.
  uint64_t read_errors() const { return read_errors_.load(std::memory_order_relaxed); }
  uint64_t write_errors() const { return write_errors_.load(std::memory_order_relaxed); }

 private:
  ColdStore(ColdStoreOptions options, CompletionQueue* completions);
  void FillDescriptor(WriteOp* op);

  const ColdStoreOptions options_;
  const RecordLayout& layout_;
  CompletionQueue* const completions_;
  cold_format::Superblock superblock_;
  int fd_ = -1;
  bool direct_ = false;
  std::string note_;
  AlignedBuffer zero_sector_;
  std::atomic<uint64_t> next_sequence_number_{1};
  std::atomic<uint64_t> read_errors_{0}, write_errors_{0};
  std::vector<uint32_t> group_crcs_;  // [record][group] of published records; engine thread
  std::unique_ptr<IoEngine> io_owner_;
  // What operations submit to: while the owner's reset() waits for those in flight, the last steps
  // of theirs are still submitted.
  IoEngine* io_ = nullptr;
};

}  // namespace strata
