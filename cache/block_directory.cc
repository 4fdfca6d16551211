#include "cache/block_directory.h"

#include "base/check.h"

namespace strata {

using State = BlockInfo::State;
using Move = BlockInfo::Move;

const BlockInfo& BlockDirectory::Get(BlockId id) const {
  STRATA_CHECK(ids_.IsUsed(id));
  return blocks_[id.value()];
}

BlockInfo& BlockDirectory::At(BlockId id) {
  STRATA_CHECK(ids_.IsUsed(id));
  return blocks_[id.value()];
}

BlockId BlockDirectory::Create(uint32_t owner, int32_t index, SlotId slot) {
  BlockId id;
  STRATA_CHECK(ids_.Allocate(1, &id));
  BlockInfo& block = blocks_[id.value()];
  block = BlockInfo{};
  block.state = State::kOpen;
  block.owner = owner;
  block.index = index;
  block.slots[IndexOf(Tier::kHot)] = slot;
  return id;
}

void BlockDirectory::Append(BlockId id, int32_t tokens) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.state == State::kOpen);
  STRATA_CHECK(tokens > 0 && block.tokens + tokens <= kBlockTokens);
  block.tokens += tokens;
  if (block.tokens == kBlockTokens) block.state = State::kSealed;
}

void BlockDirectory::BeginMove(BlockId id, SlotId target) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.state == State::kSealed && block.move == Move::kNone);
  STRATA_CHECK(block.home != Tier::kCold && !block.pinned_hot && target.valid());
  block.slots[IndexOf(block.below())] = target;
  block.move = Move::kCopying;
}

void BlockDirectory::FinishCopy(BlockId id) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.move == Move::kCopying);
  block.move = Move::kCopied;
}

SlotId BlockDirectory::CommitMove(BlockId id) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.state == State::kSealed && block.move == Move::kCopied);
  const SlotId source = block.home_slot();
  block.slots[IndexOf(block.home)] = SlotId();
  block.home = block.below();
  block.move = Move::kNone;
  return source;
}

SlotId BlockDirectory::AbortMove(BlockId id) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.move == Move::kCopied);
  const SlotId target = block.slots[IndexOf(block.below())];
  block.slots[IndexOf(block.below())] = SlotId();
  block.move = Move::kNone;
  return target;
}

void BlockDirectory::PinHot(BlockId id) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.home == Tier::kHot && block.move == Move::kNone);
  block.pinned_hot = true;
}

bool BlockDirectory::Drop(BlockId id) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.state != State::kDropped);
  block.state = State::kDropped;
  return block.move != Move::kCopying;
}

void BlockDirectory::Remove(BlockId id) {
  BlockInfo& block = At(id);
  STRATA_CHECK(block.state == State::kDropped && block.move != Move::kCopying);
  block = BlockInfo{};
  ids_.Release(id);
}

void BlockDirectory::CheckInvariants() const {
  ids_.CheckInvariants();
  for (uint32_t i = 0; i < blocks_.size(); ++i) {
    const BlockInfo& block = blocks_[i];
    const bool used = ids_.IsUsed(BlockId(i));
    STRATA_CHECK(used == (block.state != State::kFree));
    if (!used) continue;
    for (int tier = 0; tier < kTierCount; ++tier) {  // D1
      const bool target = block.move != Move::kNone && tier == IndexOf(block.home) + 1;
      STRATA_CHECK(block.slots[tier].valid() == (tier == IndexOf(block.home) || target));
    }
    STRATA_CHECK(block.tokens >= 0 && block.tokens <= kBlockTokens);
    if (block.state == State::kOpen) {  // D2
      STRATA_CHECK(block.tokens < kBlockTokens && block.home == Tier::kHot);
      STRATA_CHECK(block.move == Move::kNone);
    }
    if (block.state == State::kSealed) STRATA_CHECK(block.tokens == kBlockTokens);   // D3
    if (block.state == State::kDropped) STRATA_CHECK(block.move == Move::kCopying);  // D4
    if (block.pinned_hot) STRATA_CHECK(block.home == Tier::kHot);
  }
}

}  // namespace strata
