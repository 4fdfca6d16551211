#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cache/ids.h"
#include "cache/layout/geometry.h"
#include "cache/layout/tier.h"
#include "cache/slot_allocator.h"

namespace strata {

// Everything known about one block.
struct BlockInfo {
  enum class State : uint8_t {
    kFree,
    kOpen,     // takes tokens
    kSealed,   // 64 tokens, immutable
    kDropped,  // nobody's any more, but a copy still reads it
  };
  enum class Move : uint8_t {
    kNone,
    kCopying,  // somebody reads the home slot and writes the one below
    kCopied,   // both hold the content; home is authoritative until CommitMove
  };

  State state = State::kFree;
  Move move = Move::kNone;
  Tier home = Tier::kHot;   // where its content is read from
  bool pinned_hot = false;  // refused by the codec: stays F16 for life
  uint32_t owner = 0;       // index of the owning sequence
  int32_t index = 0;        // position in its sequence
  int32_t tokens = 0;
  std::array<SlotId, kTierCount> slots;  // valid where it holds a slot

  SlotId home_slot() const { return slots[IndexOf(home)]; }
  Tier below() const { return static_cast<Tier>(IndexOf(home) + 1); }
};

// The truth about every block: state, tier, slots, and the move in flight. Bookkeeping only: slots
// come from and go back to the caller. One thread.
//   D1: a block holds its home slot and, during a move, the slot one tier below; nothing else. The
//       home stays authoritative until CommitMove.
//   D2: only sealed blocks move, one tier down, one move at a time (M4).
//   D3: sealed content is immutable: 64 tokens, never fewer again.
//   D4: a dropped block lives on only while a copy is in flight.
//   D5: home never rises.
//   D7: CheckInvariants walks everything.
class BlockDirectory {
 public:
  explicit BlockDirectory(int32_t capacity) : ids_(capacity), blocks_(capacity) {}

  int32_t size() const { return ids_.used(); }
  const BlockInfo& Get(BlockId id) const;

  // An open, empty block in the hot slot `slot`. CHECKs capacity: every block holds a slot, so the
  // pools run out first.
  BlockId Create(uint32_t owner, int32_t index, SlotId slot);
  // Adds tokens to an open block; seals it when it has all 64.
  void Append(BlockId id, int32_t tokens);

  // A copy from the home slot to `target`, one tier down, begins.
  void BeginMove(BlockId id, SlotId target);
  // The copy is done: nobody reads or writes the slots any more.
  void FinishCopy(BlockId id);
  // The target becomes home. Returns the slot that was.
  SlotId CommitMove(BlockId id);
  // Forgets a move that is not copying. Returns its target slot.
  SlotId AbortMove(BlockId id);
  // The block can never leave the hot tier.
  void PinHot(BlockId id);

  // The owner is gone. True: take the slots of Get(id) back and Remove it now; false: do so when
  // the copy in flight has called FinishCopy.
  bool Drop(BlockId id);
  void Remove(BlockId id);

  // Calls visit(id, info) for every block that is not free.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].state != BlockInfo::State::kFree) visit(BlockId(i), blocks_[i]);
    }
  }

  void CheckInvariants() const;

  static constexpr size_t kBytesPerBlock =
      sizeof(BlockInfo) + SlotAllocator<BlockId>::kBytesPerSlot;

 private:
  BlockInfo& At(BlockId id);

  SlotAllocator<BlockId> ids_;
  std::vector<BlockInfo> blocks_;
};

}  // namespace strata
