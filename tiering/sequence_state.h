#pragma once

#include <array>
#include <cstdint>

#include "cache/block_table.h"
#include "cache/layout/tier.h"
#include "cache/slot_ledger.h"
#include "tiering/kv_policy.h"
#include "tiering/tiered_cache.h"

namespace strata {

// What one sequence has used and moved so far: the part of SequenceUsage that is counted, not
// computed.
struct SequenceCounters {
  std::array<uint64_t, kTierCount> peak_slots{};
  std::array<LinkCounters, kLinkCount> links{};
  std::chrono::nanoseconds cold_wait{0};
  double k_relative_error = 0;
  double v_relative_error = 0;
};

// One admitted sequence. Engine thread. The cursors are block indices; each only grows until the
// sequence is reset.
//   C1: write_next <= leave_next <= encode_next.
struct SequenceState {
  bool live = false;
  SequenceHandle handle = 0;
  PositionalPolicy policy;
  int32_t max_tokens = 0;
  int32_t tokens = 0;       // finished
  int32_t piece_block = 0;  // first block of the piece the last step was in
  BlockTable table;

  int32_t encode_next = 0;  // blocks before it were handed to the mover, or never will be
  int32_t leave_next = 0;   // blocks before it have left the hot tier, or never will
  int32_t write_next = 0;   // blocks before it were handed to the cold store, or never will be

  std::array<SlotAccount, kTierCount> accounts;
  int64_t staging_reserved = 0;
  bool damaged = false;   // a record of it is lost; until Reset
  bool reported = false;  // TakeDamaged has named it
  SequenceCounters counters;

  void StartOver() {
    tokens = piece_block = 0;
    encode_next = leave_next = write_next = policy.sink_blocks;
    damaged = reported = false;
    table.Clear();
  }
};

}  // namespace strata
