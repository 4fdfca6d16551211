#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace strata {

struct SchedulerLimits {
  int32_t sequences_max = 16;      // running at once
  int32_t batch_tokens_max = 320;  // rows of one step
  int32_t piece_tokens = 256;      // TieredCache's prefill piece
  int32_t overtakes_max = 16;  // later waiters that may be admitted before one that does not fit
  int32_t admission_scan_max = 8;  // waiters looked at in one turn

  // InvalidArgument for limits under which S2 and S4 could not hold together.
  absl::Status Validate() const;
};

// What the scheduler sees of a waiter. The engine lists waiters in order of arrival.
struct WaiterView {
  int32_t overtaken = 0;  // later arrivals admitted before it
  bool refused = false;   // the cache had no room for it in this turn
};

// Which waiter to try next, or nothing this turn. FIFO, except that a waiter that does not fit now
// may be overtaken, but at most overtakes_max times: after that nobody behind it is admitted until
// it is. So whoever fits an empty cache is admitted after a bounded number of others (W1).
std::optional<size_t> NextToAdmit(absl::Span<const WaiterView> waiters, int32_t running,
                                  const SchedulerLimits& limits);

// What the scheduler sees of a running sequence; the engine lists them in order of admission.
struct RunningView {
  int32_t computed = 0;    // tokens whose K and V are in the cache
  int32_t known = 0;       // prompt and generated tokens; > computed
  bool decoding = false;   // only the token sampled last is missing
  uint64_t last_step = 0;  // when it was last planned, or admitted
};

struct PlannedSlice {
  size_t index = 0;  // into the running list
  int32_t first = 0;
  int32_t tokens = 0;
  friend bool operator==(const PlannedSlice&, const PlannedSlice&) = default;
};

// One step: decodes come first in the batch, then prefill pieces.
struct StepPlan {
  std::vector<PlannedSlice> slices;
  size_t decodes = 0;  // the first ones
  int32_t rows = 0;
};

// Chooses the next step. Pure: equal input gives an equal plan.
// S1: every decoding sequence is in the plan.
// S2: rows <= batch_tokens_max.
// S3: a slice starts where its sequence stands, never straddles a multiple of piece_tokens, and is
//     cut short by nothing but that and the last known token, so that piece boundaries do not
//     depend on load.
// S4: the prefill served least recently is always in, so a piece waits for at most
//     sequences_max - 1 other pieces; more prefills share the step if they fit whole.
// Reuses the plan's memory.
void PlanStep(absl::Span<const RunningView> running, const SchedulerLimits& limits, StepPlan* plan);

}  // namespace strata
