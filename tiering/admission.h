#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "cache/slot_ledger.h"
#include "tiering/sequence_state.h"
#include "tiering/tier_plan.h"

namespace strata {

// Who may have how many slots: reserves the worst case of a sequence in every tier and in staging,
// all or nothing, and keeps the accounts while slots come and go. Engine thread.
class Admission {
 public:
  explicit Admission(const TierPlan* plan);

  // `cold_works` false: the disk takes no writes, so what should be cold must find room in warm.
  // OutOfRange when it can never fit, ResourceExhausted when it does not fit now.
  absl::Status Reserve(int32_t max_tokens, const PositionalPolicy& policy, bool cold_works,
                       SequenceState* sequence);
  // Every slot must have been returned.
  void EndReservation(SequenceState* sequence);

  SlotLedger& ledger(Tier tier) { return ledgers_[IndexOf(tier)]; }
  const SlotLedger& ledger(Tier tier) const { return ledgers_[IndexOf(tier)]; }
  int64_t staging_reserved() const { return staging_reserved_; }

 private:
  const TierPlan& plan_;
  std::array<SlotLedger, kTierCount> ledgers_;
  int64_t staging_reserved_ = 0;
};

}  // namespace strata
