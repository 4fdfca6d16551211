#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace strata {

// One sequence's account with the ledger of one tier.
struct SlotAccount {
  int32_t reserved = 0;
  int32_t used = 0;
};

// Who may take a slot of one tier: reservations of the admitted, whether used or not, and slots
// that outlive their owner because a copy still reads or writes them ("orphans"). Counts only; ids
// are SlotAllocator's. One thread.
//   L1: promised = sum over accounts of max(reserved, used), plus orphans.
//   L2: an account takes what it reserved; beyond that only what nobody was promised.
class SlotLedger {
 public:
  explicit SlotLedger(int32_t capacity) : capacity_(capacity) {}

  int32_t capacity() const { return capacity_; }
  int32_t promised() const { return promised_; }
  // Slots nobody was promised. Negative for a while when a reset sequence left orphans behind.
  int32_t unpromised() const { return capacity_ - promised_; }

  bool Reserve(int32_t slots, SlotAccount* account) {
    STRATA_CHECK(account->reserved == 0 && account->used == 0);
    if (slots > unpromised()) return false;
    account->reserved = slots;
    reserved_ += slots;
    promised_ += slots;
    return true;
  }

  // Ends a reservation; every slot must have been returned or orphaned.
  void EndReservation(SlotAccount* account) {
    STRATA_CHECK(account->used == 0);
    promised_ -= account->reserved;
    reserved_ -= account->reserved;
    account->reserved = 0;
  }

  bool Take(int32_t slots, SlotAccount* account) {
    const int32_t before = Promise(*account);
    const int32_t after = std::max(account->reserved, account->used + slots);
    if (after - before > std::max(unpromised(), 0)) return false;
    account->used += slots;
    promised_ += after - before;
    return true;
  }

  void Return(SlotAccount* account) {
    STRATA_CHECK(account->used > 0);
    const int32_t before = Promise(*account);
    --account->used;
    promised_ += Promise(*account) - before;
  }

  // The slot no longer belongs to the account but is not free yet.
  void Orphan(SlotAccount* account) {
    Return(account);
    ++promised_;
    ++orphans_;
  }
  void ReturnOrphan() {
    STRATA_CHECK(orphans_ > 0);
    --orphans_;
    --promised_;
  }

  int32_t reserved() const { return reserved_; }
  int32_t orphans() const { return orphans_; }

 private:
  static int32_t Promise(const SlotAccount& account) {
    return std::max(account.reserved, account.used);
  }

  int32_t capacity_;
  int32_t promised_ = 0;
  int32_t reserved_ = 0;
  int32_t orphans_ = 0;
};

}  // namespace strata
