#include "tiering/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace strata {
namespace {

absl::Status CheckPolicy(const PositionalPolicy& policy) {
  if (policy.sink_blocks >= 1 && policy.hot_blocks >= 0 && policy.warm_blocks >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("policy of ", policy.sink_blocks, " sink, ",
                                                 policy.hot_blocks, " hot and ", policy.warm_blocks,
                                                 " warm blocks; at least 1, 0 and 0"));
}

}  // namespace

Admission::Admission(const TierPlan* plan)
    : plan_(*plan),
      ledgers_{SlotLedger(plan->slots[0]), SlotLedger(plan->slots[1]), SlotLedger(plan->slots[2])} {
}

absl::Status Admission::Reserve(int32_t max_tokens, const PositionalPolicy& policy, bool cold_works,
                                SequenceState* sequence) {
  if (absl::Status status = CheckPolicy(policy); !status.ok()) return status;
  SlotNeed need = WorstCase(policy, max_tokens, plan_.piece_blocks);
  const int64_t units = plan_.StagingNeed(need.blocks[IndexOf(Tier::kCold)]);
  std::string never;
  std::string missing;
  for (int tier = 0; tier < kTierCount; ++tier) {
    const SlotLedger& ledger = ledgers_[tier];
    const uint64_t slot_bytes = plan_.SlotBytes(static_cast<Tier>(tier));
    int32_t wanted = need.blocks[tier];
    if (wanted > ledger.capacity()) {
      absl::StrAppend(&never, " ", TierName(static_cast<Tier>(tier)), " needs ",
                      wanted * slot_bytes, " of ", ledger.capacity() * slot_bytes, " bytes;");
    }
    if (tier == IndexOf(Tier::kWarm) && !cold_works) wanted += need.blocks[IndexOf(Tier::kCold)];
    if (wanted > ledger.unpromised()) {
      absl::StrAppend(&missing, " ", TierName(static_cast<Tier>(tier)), " needs ",
                      wanted * slot_bytes, " bytes, ",
                      std::max(ledger.unpromised(), 0) * slot_bytes, " are free;");
    }
  }
  const uint64_t unit_bytes = plan_.record.largest_group_bytes();
  if (units > plan_.staging_units) {
    absl::StrAppend(&never, " staging needs ", units * unit_bytes, " of ",
                    plan_.staging_units * unit_bytes, " bytes;");
  } else if (units > plan_.staging_units - staging_reserved_) {
    absl::StrAppend(&missing, " staging needs ", units * unit_bytes, " bytes, ",
                    (plan_.staging_units - staging_reserved_) * unit_bytes, " are free;");
  }
  if (!never.empty()) {
    never.pop_back();
    return absl::OutOfRangeError(
        absl::StrCat("a sequence of ", max_tokens, " tokens can never fit:", never));
  }
  if (!missing.empty()) {
    missing.pop_back();
    return absl::ResourceExhaustedError(absl::StrCat(
        "a sequence of ", max_tokens, " tokens does not fit now:", missing,
        cold_works ? "" : " (the cold tier takes no writes: its blocks count as warm)"));
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    STRATA_CHECK(ledgers_[tier].Reserve(need.blocks[tier], &sequence->accounts[tier]));
  }
  sequence->staging_reserved = units;
  staging_reserved_ += units;
  return absl::OkStatus();
}

void Admission::EndReservation(SequenceState* sequence) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    ledgers_[tier].EndReservation(&sequence->accounts[tier]);
  }
  staging_reserved_ -= sequence->staging_reserved;
  sequence->staging_reserved = 0;
}

}  // namespace strata
