#include <cstring>
#include <set>
#include <vector>

#include "cache/ids.h"
#include "cache/page_pool.h"
#include "cache/slot_allocator.h"
#include "cache/slot_ledger.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(SlotAllocatorTest, AllOrNothing) {
  SlotAllocator<SlotId> slots(5);
  std::vector<SlotId> ids(5);
  ASSERT_TRUE(slots.Allocate(3, ids.data()));
  EXPECT_FALSE(slots.Allocate(3, ids.data() + 3));
  EXPECT_EQ(slots.free(), 2);
  ASSERT_TRUE(slots.Allocate(2, ids.data() + 3));
  EXPECT_EQ(std::set<SlotId>(ids.begin(), ids.end()).size(), 5u);
  EXPECT_TRUE(slots.Allocate(0, nullptr));
  slots.Release(ids[1]);
  EXPECT_EQ(slots.used(), 4);
  SlotId again;
  ASSERT_TRUE(slots.Allocate(1, &again));
  EXPECT_EQ(again, ids[1]);
  slots.CheckInvariants();
}

TEST(SlotAllocatorDeathTest, DoubleReleaseStopsTheProcess) {
  SlotAllocator<SlotId> slots(2);
  SlotId id;
  ASSERT_TRUE(slots.Allocate(1, &id));
  slots.Release(id);
  EXPECT_DEATH(slots.Release(id), "check failed");
  EXPECT_DEATH(slots.Release(SlotId()), "check failed");
  EXPECT_DEATH(slots.Release(SlotId(2)), "check failed");
}

TEST(PagePoolTest, SlotsDoNotOverlap) {
  auto pool = PagePool<SlotId>::Create(3, 100);
  ASSERT_TRUE(pool.ok());
  std::vector<SlotId> ids(3);
  ASSERT_TRUE(pool->slots().Allocate(3, ids.data()));
  for (size_t i = 0; i < 3; ++i) std::memset(pool->At(ids[i]), static_cast<int>(i + 1), 100);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pool->At(ids[i])[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(pool->At(ids[i])[99], static_cast<std::byte>(i + 1));
  }
  pool->slots().Release(ids[0]);
  EXPECT_DEATH(pool->At(ids[0]), "check failed");
}

TEST(SlotLedgerTest, ReservesOnlyWhatIsNotPromised) {
  SlotLedger ledger(10);
  SlotAccount a;
  SlotAccount b;
  EXPECT_TRUE(ledger.Reserve(6, &a));
  EXPECT_FALSE(ledger.Reserve(5, &b));
  EXPECT_EQ(b.reserved, 0);
  EXPECT_TRUE(ledger.Reserve(4, &b));
  EXPECT_EQ(ledger.unpromised(), 0);
  ledger.EndReservation(&a);
  EXPECT_EQ(ledger.unpromised(), 6);
  EXPECT_EQ(ledger.reserved(), 4);
}

TEST(SlotLedgerTest, TakesBeyondAReservationOnlyWhatNobodyWasPromised) {
  SlotLedger ledger(10);
  SlotAccount a;
  SlotAccount b;
  ASSERT_TRUE(ledger.Reserve(4, &a));
  ASSERT_TRUE(ledger.Reserve(4, &b));
  EXPECT_TRUE(ledger.Take(5, &a));  // one of the two that are left
  EXPECT_EQ(ledger.unpromised(), 1);
  EXPECT_FALSE(ledger.Take(2, &a));
  EXPECT_EQ(a.used, 5);
  EXPECT_TRUE(ledger.Take(4, &b));  // b's own are safe
  ledger.Return(&a);
  EXPECT_EQ(ledger.unpromised(), 2);
  ledger.Return(&a);
  EXPECT_EQ(ledger.unpromised(), 2);  // within its reservation again
}

TEST(SlotLedgerTest, OrphansStayPromisedUntilTheyReturn) {
  SlotLedger ledger(4);
  SlotAccount a;
  ASSERT_TRUE(ledger.Reserve(4, &a));
  ASSERT_TRUE(ledger.Take(2, &a));
  ledger.Orphan(&a);
  ledger.Orphan(&a);
  EXPECT_EQ(ledger.unpromised(), -2);  // all four are still reserved
  EXPECT_TRUE(ledger.Take(4, &a));     // the reservation holds; ids may be short for a while
  for (int i = 0; i < 4; ++i) ledger.Return(&a);
  ledger.EndReservation(&a);
  EXPECT_EQ(ledger.unpromised(), 2);
  ledger.ReturnOrphan();
  ledger.ReturnOrphan();
  EXPECT_EQ(ledger.unpromised(), 4);
  EXPECT_DEATH(ledger.ReturnOrphan(), "check failed");
}

}  // namespace
}  // namespace strata
