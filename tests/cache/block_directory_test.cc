#include "cache/block_directory.h"

#include "cache/block_table.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using State = BlockInfo::State;

class BlockDirectoryTest : public ::testing::Test {
 protected:
  BlockId Sealed(uint32_t slot = 0) {
    const BlockId id = directory_.Create(0, 0, SlotId(slot));
    directory_.Append(id, 64);
    return id;
  }
  BlockDirectory directory_{3};
};

TEST_F(BlockDirectoryTest, SealsWithTheLastToken) {
  const BlockId id = directory_.Create(7, 2, SlotId(9));
  directory_.Append(id, 63);
  EXPECT_EQ(directory_.Get(id).state, State::kOpen);
  directory_.Append(id, 1);
  EXPECT_EQ(directory_.Get(id).state, State::kSealed);
  EXPECT_EQ(directory_.Get(id).owner, 7u);
  EXPECT_EQ(directory_.Get(id).index, 2);
  EXPECT_DEATH(directory_.Append(id, 1), "check failed");  // D3
}

TEST_F(BlockDirectoryTest, MovesOneTierAtATimeAndOnlyDown) {
  const BlockId id = Sealed(4);
  directory_.BeginMove(id, SlotId(1));
  EXPECT_EQ(directory_.Get(id).home, Tier::kHot);  // D1: until commit
  EXPECT_DEATH(directory_.BeginMove(id, SlotId(2)), "check failed");
  EXPECT_DEATH(directory_.CommitMove(id), "check failed");
  directory_.FinishCopy(id);
  directory_.CheckInvariants();
  EXPECT_EQ(directory_.CommitMove(id), SlotId(4));
  EXPECT_EQ(directory_.Get(id).home, Tier::kWarm);
  EXPECT_EQ(directory_.Get(id).home_slot(), SlotId(1));
  directory_.BeginMove(id, SlotId(6));
  directory_.FinishCopy(id);
  EXPECT_EQ(directory_.AbortMove(id), SlotId(6));
  EXPECT_EQ(directory_.Get(id).home, Tier::kWarm);
  directory_.BeginMove(id, SlotId(6));
  directory_.FinishCopy(id);
  EXPECT_EQ(directory_.CommitMove(id), SlotId(1));
  EXPECT_EQ(directory_.Get(id).home, Tier::kCold);
  EXPECT_DEATH(directory_.BeginMove(id, SlotId(1)), "check failed");
  directory_.CheckInvariants();
}

TEST_F(BlockDirectoryTest, OpenAndPinnedBlocksStay) {
  const BlockId open = directory_.Create(0, 0, SlotId(0));
  EXPECT_DEATH(directory_.BeginMove(open, SlotId(1)), "check failed");  // D2
  const BlockId pinned = Sealed(1);
  directory_.PinHot(pinned);
  EXPECT_DEATH(directory_.BeginMove(pinned, SlotId(1)), "check failed");
}

TEST_F(BlockDirectoryTest, DroppedBlockOutlivesItsCopy) {
  const BlockId id = Sealed();
  directory_.BeginMove(id, SlotId(1));
  EXPECT_FALSE(directory_.Drop(id));  // D4
  EXPECT_EQ(directory_.size(), 1);
  EXPECT_DEATH(directory_.Remove(id), "check failed");
  directory_.CheckInvariants();
  directory_.FinishCopy(id);
  directory_.Remove(id);
  EXPECT_EQ(directory_.size(), 0);
  EXPECT_DEATH(directory_.Get(id), "check failed");
  const BlockId idle = Sealed();
  EXPECT_TRUE(directory_.Drop(idle));
  directory_.Remove(idle);
  directory_.CheckInvariants();
}

TEST(BlockTableTest, ChecksThatBlocksAreItsOwnInOrder) {
  BlockDirectory directory(4);
  BlockTable table;
  const BlockId first = directory.Create(3, 0, SlotId(0));
  const BlockId second = directory.Create(3, 1, SlotId(1));
  directory.Append(first, 64);
  directory.Append(second, 10);
  table.Push(first);
  table.Push(second);
  table.CheckInvariants(directory, 3, 74);
  EXPECT_DEATH(table.CheckInvariants(directory, 3, 75), "check failed");
  EXPECT_DEATH(table.CheckInvariants(directory, 2, 74), "check failed");
  EXPECT_DEATH(static_cast<void>(table[2]), "check failed");
  BlockTable swapped;
  swapped.Push(second);
  swapped.Push(first);
  EXPECT_DEATH(swapped.CheckInvariants(directory, 3, 74), "check failed");
}

}  // namespace
}  // namespace strata
