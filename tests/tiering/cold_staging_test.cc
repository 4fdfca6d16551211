#include "tiering/cold_staging.h"

#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiering/cache_driver.h"
#include "tests/tiering/faulty_io.h"

namespace strata {
namespace {

constexpr int32_t kRecords = 6;
constexpr int32_t kGroups = 8;

// A store with six records whose bytes are their numbers, and staging of `units` units above it.
class ColdStagingTest : public ::testing::Test {
 protected:
  void Make(int32_t units) {
    const TierOptions options =
        SmallOptions({.warm_blocks = 4, .cold_blocks = kRecords, .cold_path = file_.path()});
    layout_ = TierPlan::Make(options).record;
    ASSERT_EQ(layout_.groups(), kGroups);
    ColdStoreOptions store;
    store.path = file_.path();
    store.bytes_max = options.cold_bytes;
    store.formats = options.formats;
    store.layout = &layout_;
    store.make_io = FaultyIo(plan_);
    store_ = *ColdStore::Open(store, &completions_);
    auto pool = PagePool<UnitId>::Create(units, layout_.largest_group_bytes());
    staging_ = std::make_unique<ColdStaging>(&layout_, *std::move(pool), store_.get());
    for (uint32_t i = 0; i < kRecords; ++i) {
      ColdStore::WriteOp op;
      ASSERT_TRUE(store_->Prepare(&op).ok());
      std::memset(op.buffer.data(), static_cast<int>(i + 1), op.buffer.size());
      op.record = SlotId(i);
      store_->Write(&op);
      ASSERT_EQ(completions_.WaitAll(std::chrono::seconds(20)), static_cast<Completion*>(&op));
      store_->Publish(op);
      staging_->Add(op.record);
      all_.push_back(op.record);
    }
  }
  void TearDown() override {
    plan_->Open();
    store_.reset();
  }
  void Drain(std::chrono::milliseconds timeout) {
    Completion* done = completions_.WaitAll(timeout);
    while (done != nullptr) {
      Completion* next = done->next;
      staging_->OnRead(static_cast<ColdStore::ReadOp*>(done));
      done = next;
    }
    staging_->CheckInvariants();
  }
  void Settle() {
    while (staging_->reads_in_flight() > 0) Drain(std::chrono::seconds(20));
  }
  // All of the step's groups, checking each unit's bytes.
  void Walk() {
    staging_->BeginStep(all_);
    for (int32_t group = 0; group < layout_.groups(); ++group) {
      staging_->EnterGroup(group);
      while (staging_->missing() > 0) Drain(std::chrono::seconds(20));
      for (const SlotId record : all_) {
        ASSERT_EQ(*staging_->Unit(record, group), static_cast<std::byte>(record.value() + 1));
      }
    }
    staging_->EndStep();
  }
  uint64_t Reads() const { return store_->io_counters().reads_submitted; }

  ScratchPath file_;
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>(1);
  CompletionQueue completions_;
  RecordLayout layout_;
  std::unique_ptr<ColdStaging> staging_;
  std::unique_ptr<ColdStore> store_;
  std::vector<SlotId> all_;
};

TEST_F(ColdStagingTest, EverythingIsResidentWhereItFits) {
  Make(kRecords * kGroups);
  EXPECT_EQ(staging_->resident_records(), kRecords);
  const auto pages = static_cast<uint64_t>(kRecords * layout_.layers());
  Walk();
  EXPECT_EQ(Reads(), uint64_t{kRecords * kGroups});
  EXPECT_EQ(staging_->page_lookups(), pages);
  EXPECT_EQ(staging_->page_hits(), 0u);
  Walk();
  EXPECT_EQ(Reads(), uint64_t{kRecords * kGroups});
  EXPECT_EQ(staging_->page_lookups(), 2 * pages);
  EXPECT_EQ(staging_->page_hits(), pages);
}

TEST_F(ColdStagingTest, ResidentBlocksLeaveTwoGroupsToTheOthers) {
  Make(33);
  // r residents and 6 - r streaming ones: 9 r + 2 (6 - r) <= 33.
  EXPECT_EQ(staging_->resident_records(), 3);
  for (int i = 0; i < 5; ++i) Walk();
  // The three residents, in all steps but the first.
  EXPECT_EQ(staging_->page_hits(), static_cast<uint64_t>(4 * 3 * layout_.layers()));
  EXPECT_LE(staging_->units_used(), 33);
  // The residents once; the others each time, but for what waited from step to step.
  Settle();
  EXPECT_LE(Reads(), 27u + 5 * 27 + 2 * 3);
  EXPECT_GE(Reads(), 27u + 5 * 27 - 2 * 3 * 4);
}

TEST_F(ColdStagingTest, TheLeastMemoryStillStreams) {
  Make(2 * kRecords);
  EXPECT_EQ(staging_->resident_records(), 0);
  for (int i = 0; i < 3; ++i) Walk();
  // Read ahead in time is no hit: it came from the disk for this step.
  EXPECT_EQ(staging_->page_lookups(), static_cast<uint64_t>(3 * kRecords * layout_.layers()));
  EXPECT_EQ(staging_->page_hits(), 0u);
}

// Reads are under way before anybody waits for them: this group's, the next one's, and at the end
// of a step the first ones of the step to come.
TEST_F(ColdStagingTest, ReadsAheadAcrossGroupsAndSteps) {
  Make(2 * kRecords);
  plan_->Hold();
  staging_->BeginStep(all_);
  EXPECT_EQ(staging_->reads_in_flight(), 2 * kRecords);
  plan_->Open();
  for (int32_t group = 0; group < layout_.groups(); ++group) {
    staging_->EnterGroup(group);
    while (staging_->missing() > 0) Drain(std::chrono::seconds(20));
  }
  staging_->EndStep();
  Settle();
  // The groups of this step and the first one of the next.
  EXPECT_EQ(Reads(), (kGroups + 1u) * kRecords);
  staging_->BeginStep(all_);
  staging_->EnterGroup(0);
  EXPECT_EQ(staging_->missing(), 0);
  staging_->EndStep();
}

TEST_F(ColdStagingTest, RemovedRecordsGiveTheirUnitsBackWhenTheirReadsAreDone) {
  Make(2 * kRecords);
  plan_->Hold();
  staging_->BeginStep(all_);
  staging_->EndStep();
  for (const SlotId record : all_) staging_->Remove(record);
  staging_->CheckInvariants();
  EXPECT_EQ(staging_->units_used(), 2 * kRecords);
  plan_->Open();
  Settle();
  EXPECT_EQ(staging_->units_used(), 0);
  EXPECT_EQ(staging_->known_records(), 0);
}

TEST_F(ColdStagingTest, BadRecordIsNamedOnce) {
  Make(2 * kRecords);
  plan_->SetReads({.error = 1});
  staging_->BeginStep({all_.data(), 1});
  int bad = 0;
  while (staging_->reads_in_flight() > 0) {
    Completion* done = completions_.WaitAll(std::chrono::seconds(20));
    while (done != nullptr) {
      Completion* next = done->next;
      bad += staging_->OnRead(static_cast<ColdStore::ReadOp*>(done)) ? 1 : 0;
      done = next;
    }
  }
  EXPECT_EQ(bad, 1);
  EXPECT_TRUE(staging_->failed());
  staging_->EndStep();
  EXPECT_EQ(staging_->units_used(), 0);
}

}  // namespace
}  // namespace strata
