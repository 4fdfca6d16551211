#include "server/engine/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace strata {
namespace {

// S3: up to the end of the piece or of what is known.
int32_t SliceTokens(const RunningView& view, int32_t piece_tokens) {
  const int64_t piece_end = (int64_t{view.computed} / piece_tokens + 1) * piece_tokens;
  return static_cast<int32_t>(std::min<int64_t>(piece_end, view.known) - view.computed);
}

void Add(const RunningView& view, size_t index, int32_t tokens, StepPlan* plan) {
  plan->slices.push_back({index, view.computed, tokens});
  plan->rows += tokens;
}

}  // namespace

absl::Status SchedulerLimits::Validate() const {
  if (sequences_max < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_sequences is ", sequences_max, ", must be at least 1"));
  }
  if (piece_tokens < 1 || overtakes_max < 0 || admission_scan_max < 1) {
    return absl::InvalidArgumentError(absl::StrCat("scheduler limits out of range: piece_tokens ",
                                                   piece_tokens, ", overtakes_max ", overtakes_max,
                                                   ", admission_scan_max ", admission_scan_max));
  }
  const int64_t needed = int64_t{piece_tokens} + sequences_max - 1;
  if (batch_tokens_max < needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_batch_tokens is ", batch_tokens_max, ", must be at least ", needed,
        ": a prefill piece of ", piece_tokens, " beside ", sequences_max - 1, " decodes"));
  }
  return absl::OkStatus();
}

std::optional<size_t> NextToAdmit(absl::Span<const WaiterView> waiters, int32_t running,
                                  const SchedulerLimits& limits) {
  if (running >= limits.sequences_max) return std::nullopt;
  const size_t scan = std::min<size_t>(waiters.size(), limits.admission_scan_max);
  for (size_t i = 0; i < scan; ++i) {
    if (!waiters[i].refused) return i;
    if (waiters[i].overtaken >= limits.overtakes_max) return std::nullopt;
  }
  return std::nullopt;
}

void PlanStep(absl::Span<const RunningView> running, const SchedulerLimits& limits,
              StepPlan* plan) {
  plan->slices.clear();
  plan->rows = 0;
  for (size_t i = 0; i < running.size(); ++i) {
    STRATA_CHECK(running[i].known > running[i].computed);
    if (running[i].decoding) Add(running[i], i, 1, plan);
  }
  plan->decodes = plan->slices.size();

  // The rest in the order served; ties by admission. Collected as slices, then kept if they fit.
  for (size_t i = 0; i < running.size(); ++i) {
    if (running[i].decoding) continue;
    plan->slices.push_back({i, running[i].computed, SliceTokens(running[i], limits.piece_tokens)});
  }
  const auto prefills = plan->slices.begin() + static_cast<ptrdiff_t>(plan->decodes);
  std::sort(prefills, plan->slices.end(), [&](const PlannedSlice& a, const PlannedSlice& b) {
    const uint64_t a_step = running[a.index].last_step, b_step = running[b.index].last_step;
    return a_step != b_step ? a_step < b_step : a.index < b.index;
  });
  const auto kept = std::remove_if(prefills, plan->slices.end(), [&](const PlannedSlice& slice) {
    if (plan->rows + slice.tokens > limits.batch_tokens_max) return true;
    plan->rows += slice.tokens;
    return false;
  });
  plan->slices.erase(kept, plan->slices.end());
}

}  // namespace strata
