#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace strata {

// Hands out the ids 0..capacity-1, apart from any bytes. One thread.
//   P1: free + used == capacity; releasing an id that is not out is a CHECK.
//   P3: nothing is allocated after construction; exhaustion is an answer, never a crash.
template <typename Id>
class SlotAllocator {
 public:
  explicit SlotAllocator(int32_t capacity) : used_flags_(capacity, false) {
    STRATA_CHECK(capacity >= 0);
    free_ids_.reserve(capacity);
    // Low ids go out first: a pool that is never full then touches less memory.
    for (int32_t i = capacity; i > 0; --i) free_ids_.push_back(static_cast<uint32_t>(i - 1));
  }

  int32_t capacity() const { return static_cast<int32_t>(used_flags_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_ids_.size()); }
  int32_t used() const { return capacity() - free(); }
  bool IsUsed(Id id) const { return id.valid() && used_flags_[id.value()]; }

  // All of ids[0..count) or nothing.
  bool Allocate(int32_t count, Id* ids) {
    STRATA_CHECK(count >= 0);
    if (count > free()) return false;
    for (int32_t i = 0; i < count; ++i) {
      const uint32_t value = free_ids_.back();
      free_ids_.pop_back();
      used_flags_[value] = true;
      ids[i] = Id(value);
    }
    return true;
  }

  void Release(Id id) {
    STRATA_CHECK(id.valid() && id.value() < used_flags_.size());
    STRATA_CHECK(used_flags_[id.value()]);
    used_flags_[id.value()] = false;
    free_ids_.push_back(id.value());
  }

  void CheckInvariants() const {
    int32_t out = 0;
    for (const bool flag : used_flags_) out += flag ? 1 : 0;
    STRATA_CHECK(out == used());
    for (const uint32_t id : free_ids_) STRATA_CHECK(!used_flags_[id]);
  }

  // Memory one slot's bookkeeping takes, at most.
  static constexpr size_t kBytesPerSlot = sizeof(uint32_t) + 1;

 private:
  std::vector<uint32_t> free_ids_;
  std::vector<bool> used_flags_;
};

}  // namespace strata
