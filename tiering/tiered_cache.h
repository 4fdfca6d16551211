#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/duration_histogram.h"
#include "cache/layout/geometry.h"
#include "kernels/device_memory.h"
#include "kernels/kv_step.h"
#include "kernels/page_codec.h"
#include "tiering/kv_policy.h"
#include "tiering/tier_options.h"

namespace strata {

using SequenceHandle = uint64_t;

// One sequence's part of the next step: `tokens` new tokens from position `first`. All of them lie
// in one piece: prefill pieces and decode steps never straddle a multiple of piece_tokens.
struct StepSlice {
  SequenceHandle sequence = 0;
  int32_t first = 0;
  int32_t tokens = 0;
};

// Bytes that crossed one link, and what F16 pages would have cost.
struct LinkCounters {
  uint64_t bytes = 0;
  uint64_t f16_bytes = 0;
  uint64_t pages = 0;
  uint64_t nanoseconds = 0;
};
// Links, as (source, target): hot>warm and warm>cold are demotions; cold>hot is reading cold pages
// for attention (they are read at cold precision and never kept as anything better).
enum class Link : uint8_t { kHotToWarm = 0, kWarmToCold = 1, kColdToHot = 2 };
inline constexpr int kLinkCount = 3;

// What one sequence holds, and has moved, right now.
struct SequenceUsage {
  // Tokens by the precision they are READ at (the policy's tier), and pages by where bytes LIE.
  std::array<int64_t, kTierCount> tokens{};
  std::array<int64_t, kTierCount> pages{};  // page = one layer of a block
  std::array<uint64_t, kTierCount> bytes{};
  std::array<uint64_t, kTierCount> peak_bytes{};
  std::array<double, kTierCount> bits_per_value{};
  std::array<LinkCounters, kLinkCount> links{};
  std::chrono::nanoseconds cold_wait{0};  // time steps waited for cold reads
  double k_relative_error = 0;            // sampled, warm against hot; 0 before any sample
  double v_relative_error = 0;
};

// What a tier holds, and has done since start.
struct TierSnapshot {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;      // cold: bytes of records on disk
  uint64_t reserved_bytes = 0;  // promised to admitted sequences, used or not
  uint64_t tokens = 0;
  uint64_t pages = 0;
  uint64_t free_pages = 0;
  uint64_t f16_bytes = 0;     // what its pages would take in F16
  double bits_per_value = 0;  // parameters included
  double k_bits_per_value = 0;
  double v_bits_per_value = 0;
  uint64_t attended_tokens = 0;  // context read at this precision, once a step and sequence
  // Pages that steps wanted of the blocks lying here, and those found in memory: all of hot and
  // warm; of cold, the ones in the staging memory from an earlier step.
  uint64_t lookups = 0;
  uint64_t hits = 0;
  uint64_t dropped_pages = 0;  // released from here by requests that ended or start over
};

// How a cold record turned out to be damaged when it was read: its bytes do not match their
// checksum, or the file ends before it does.
enum class Damage : uint8_t { kChecksum = 0, kShort = 1 };
inline constexpr int kDamageCount = 2;

struct CacheSnapshot {
  std::array<TierSnapshot, kTierCount> tiers;
  std::array<LinkCounters, kLinkCount> links;
  uint64_t demoted_pages[2] = {0, 0};                       // hot>warm, warm>cold
  std::array<uint64_t, kDamageCount> integrity_failures{};  // cold records lost, by Damage
  uint64_t io_read_errors = 0, io_write_errors = 0;         // transfers, whether or not repeated
  uint64_t io_reads_submitted = 0, io_reads_completed = 0;
  uint64_t io_writes_submitted = 0, io_writes_completed = 0;
  DurationHistogram io_read_latency, io_write_latency;
  DurationHistogram quantize;    // encoding one block
  DurationHistogram fetch_wait;  // of steps that had to wait for cold pages
  DurationHistogram move_wait;   // of steps that had to wait for a slot or an encoding
  uint64_t refused_blocks = 0;   // not finite: kept in F16
  // Latest samples, as warm and as cold tiers are read; 0 before any, and for hot.
  std::array<double, kTierCount> k_relative_error{};
  std::array<double, kTierCount> v_relative_error{};
  bool cold_degraded = false;  // the disk fails or is full: serving from two tiers
  std::string io_engine;       // io_uring, threads, none
  std::string cold_note;       // what Create found at cold_path; empty for a new file
  uint64_t sequences = 0;
};

// The KV cache as the engine sees it: sequences own blocks of 64 tokens, each block lies in the
// tier its position demands, and a step gets every page it must read. Owns pools, directory, mover
// and cold store. All methods on the engine thread; the mover and the I/O engine work behind it and
// are drained by it.
//
// Reads always use the precision PositionalPolicy names, wherever the bytes happen to lie: a block
// on its way to disk, or one a broken disk keeps in DRAM, is read from its warm slot by its hi
// planes alone. So a slow disk changes no token.
class TieredCache {
 public:
  // InvalidArgument for a bad combination; ResourceExhausted, saying how much fits, for budgets
  // above memory or disk. Hot blocks lie in device memory, warm ones and what was read from disk in
  // pinned memory of `memory`; it and `codec`, of one backend, must outlive the cache.
  static absl::StatusOr<std::unique_ptr<TieredCache>> Create(const TierOptions& options,
                                                             const PageCodec* codec,
                                                             DeviceMemory* memory);
  virtual ~TieredCache() = default;

  // Reserves the worst case of a sequence of at most `max_tokens` tokens. ResourceExhausted, with
  // needed and free bytes a tier, when it does not fit now; OutOfRange when it can never fit.
  virtual absl::StatusOr<SequenceHandle> Admit(int32_t max_tokens,
                                               const PositionalPolicy& policy) = 0;
  // Frees every block and the reservation, cancelling moves and reads in flight. Memory still being
  // read by the mover or the disk returns when they are done.
  virtual void Release(SequenceHandle sequence) = 0;
  // Drops the content but keeps the reservation: the sequence starts over at position 0.
  virtual void Reset(SequenceHandle sequence) = 0;

  // Gets slots for the new tokens, commits the moves their piece demands, and starts reading cold
  // pages. One step at a time, until FinishStep. ResourceExhausted names the sequence that cannot
  // go on (tiers full because of a broken disk).
  virtual absl::StatusOr<KvStep*> PrepareStep(absl::Span<const StepSlice> slices) = 0;
  // `completed`: the tokens were written; seals full blocks and hands the next moves to the mover.
  // Otherwise the step is forgotten.
  virtual void FinishStep(bool completed) = 0;
  // After BeginLayer failed: the sequences whose pages were bad. Their bad blocks are dropped and
  // counted; the engine resets them and computes their tokens again.
  virtual std::vector<SequenceHandle> TakeDamaged() = 0;

  // Takes in finished moves and reads. Cheap; called every loop.
  virtual void Poll() = 0;

  virtual SequenceUsage Usage(SequenceHandle sequence) const = 0;
  virtual CacheSnapshot Snapshot() const = 0;
  // Walks everything and CHECKs every invariant (D7).
  virtual void CheckInvariants() const = 0;

  virtual const TierOptions& options() const = 0;
  // The sequence an error of PrepareStep or BeginLayer is about; 0 when it is about none.
  static SequenceHandle SequenceOf(const absl::Status& status);
  // The windows that the budgets buy for `max_sequences` sequences of `max_context` tokens. This
  // and BlockBytes are for options that Validate() accepts.
  static PositionalPolicy DefaultPolicy(const TierOptions& options);
  // Bytes of one block in each tier.
  static std::array<size_t, kTierCount> BlockBytes(const TierOptions& options);
};

}  // namespace strata
