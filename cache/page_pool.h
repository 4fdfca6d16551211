#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "base/aligned_buffer.h"
#include "base/buffer.h"
#include "base/status_macros.h"
#include "cache/slot_allocator.h"

namespace strata {

// Slots of equal size in one buffer taken at start-up (P3). The bytes of a slot belong to whoever
// holds its id. One thread allocates; bytes may be used by any, and by whichever device their
// memory is of.
template <typename Id>
class PagePool {
 public:
  // `memory` has room for all slots.
  PagePool(int32_t slots, size_t slot_bytes, Buffer memory)
      : slots_(slots), slot_bytes_(slot_bytes), memory_(std::move(memory)) {
    STRATA_CHECK(memory_.size() >= slots * slot_bytes);
  }
  // In host memory.
  static absl::StatusOr<PagePool> Create(int32_t slots, size_t slot_bytes) {
    STRATA_ASSIGN_OR_RETURN(AlignedBuffer memory, AlignedBuffer::Allocate(slots * slot_bytes));
    return PagePool(slots, slot_bytes, Buffer(std::move(memory)));
  }

  SlotAllocator<Id>& slots() { return slots_; }
  const SlotAllocator<Id>& slots() const { return slots_; }
  size_t slot_bytes() const { return slot_bytes_; }
  std::byte* At(Id id) {
    STRATA_CHECK(slots_.IsUsed(id));
    return memory_.data() + id.value() * slot_bytes_;
  }

 private:
  SlotAllocator<Id> slots_;
  size_t slot_bytes_;
  Buffer memory_;
};

}  // namespace strata
