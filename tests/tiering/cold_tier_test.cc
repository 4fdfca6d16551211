// The cold tier seen through the cache: engines, staging, rates, and everything a disk can do
// wrong.

#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tiering/cache_fixture.h"
#include "tests/tiering/faulty_io.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr PositionalPolicy kPolicy{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 3};
constexpr int kLayers = 12;

class ColdTierTest : public CacheTest {
 protected:
  SmallBudget Budget() {
    return {.hot_blocks = 24,
            .warm_blocks = 24,
            .cold_blocks = 96,
            .staging_units = 260,
            .cold_path = file_.path()};
  }
  ColdTierTest() { clock_.Advance(std::chrono::hours(1)); }
  ~ColdTierTest() override {
    driver_.reset();
    cache_.reset();  // its threads read the clock
  }

  TierEnvironment Faulty() {
    TierEnvironment environment;
    environment.make_io = FaultyIo(plan_);
    environment.patience = std::chrono::milliseconds(3'000);
    return environment;
  }
  // Pauses end when a test advances `clock_`.
  TierEnvironment FaultyAndTimed() {
    TierEnvironment environment = Faulty();
    environment.clock = &clock_;
    return environment;
  }
  // Flips a byte of the first group of every record in the file.
  void CorruptFile() {
    const TierPlan plan = TierPlan::Make(cache_->options());
    const int fd = open(file_.path().c_str(), O_RDWR);
    ASSERT_GE(fd, 0);
    for (int32_t i = 0; i < plan.slots[2]; ++i) {
      const uint64_t at = cold_format::RecordOffset(i, plan.slots[2], plan.record.bytes()) + 99;
      char byte = 0;
      ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(at)), 1);
      byte ^= 0x10;
      ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(at)), 1);
    }
    ASSERT_EQ(fsync(fd), 0);
    close(fd);
  }

  ManualClock clock_;
  ScratchPath file_;
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>(5);
};

// The host's memory, counting how often a step waits for a device.
class CountingMemory final : public DeviceMemory {
 public:
  absl::StatusOr<Buffer> AllocateDevice(size_t bytes) override {
    return HostMemory()->AllocateDevice(bytes);
  }
  absl::StatusOr<Buffer> AllocatePinned(size_t bytes) override {
    return HostMemory()->AllocatePinned(bytes);
  }
  absl::StatusOr<Available> AvailableDevice() const override {
    return HostMemory()->AvailableDevice();
  }
  bool host_accessible() const override { return true; }
  absl::Status Upload(const void* host, size_t bytes, void* device) override {
    return HostMemory()->Upload(host, bytes, device);
  }
  absl::Status Download(const void* device, size_t bytes, void* host) override {
    return HostMemory()->Download(device, bytes, host);
  }
  absl::Status Synchronize() override {
    ++waits;
    return absl::OkStatus();
  }

  int waits = 0;
};

struct Engine {
  const char* name;
  bool direct;
};
class ColdEngineTest : public ColdTierTest, public ::testing::WithParamInterface<Engine> {};

TEST_P(ColdEngineTest, BringsBackTheSameBytes) {
  TierOptions options = SmallOptions(Budget());
  options.io_engine = GetParam().name;
  TierEnvironment environment;
  environment.direct_io = GetParam().direct;
  auto probe = TieredCacheImpl::Create(options, codec_.get(), environment);
  if (probe.status().code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << probe.status();
  probe->reset();
  Make(options, environment);
  EXPECT_EQ(cache_->Snapshot().io_engine, GetParam().name);
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  CacheDriver::Sequence b = Admit(2, 1300, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 1290).ok());
  ASSERT_TRUE(driver_->Grow(&b, 1290).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(driver_->Step({{&a, 1}, {&b, 1}}).ok());
  cache_->WaitUntilIdle();
  cache_->CheckInvariants();
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 14 * 64);
  driver_->Release(a);
  driver_->Release(b);
  ExpectEmpty();
}

INSTANTIATE_TEST_SUITE_P(Engines, ColdEngineTest,
                         ::testing::Values(Engine{"threads", true}, Engine{"threads", false},
                                           Engine{"io_uring", true}, Engine{"io_uring", false}),
                         [](const auto& engine) {
                           return std::string(engine.param.name) +
                                  (engine.param.direct ? "_direct" : "_buffered");
                         });

TEST_F(ColdTierTest, UnitsThatFitAreReadOnce) {
  SmallBudget budget = Budget();
  budget.staging_units = 96 * 8;
  CountingMemory memory;
  TierEnvironment environment;
  environment.memory = &memory;
  Make(SmallOptions(budget), environment);
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 1281).ok());
  cache_->WaitUntilIdle();
  ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());
  cache_->WaitUntilIdle();
  const CacheSnapshot before = cache_->Snapshot();
  EXPECT_EQ(before.links[2].pages, 14u * kLayers);  // every cold block once
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());
  EXPECT_EQ(cache_->Snapshot().io_reads_submitted, before.io_reads_submitted);
  EXPECT_EQ(memory.waits, 0);  // no unit goes while a step may read it
  driver_.reset();
  cache_.reset();
}

// Just enough units for two groups of every block: each step streams all of it, in order, and gets
// it right.
TEST_F(ColdTierTest, WhatDoesNotFitStreams) {
  SmallBudget budget = Budget();
  TierOptions options = SmallOptions(budget);
  options.max_context = 1300;
  options.staging_bytes = 1;
  // The least that the refusal asks for.
  const std::string refusal(TierPlan::Make(options).CheckMinimum(options).message());
  const size_t at = refusal.find("at least ");
  ASSERT_NE(at, std::string::npos) << refusal;
  options.staging_bytes = std::stoull(refusal.substr(at + 9));
  CountingMemory memory;
  TierEnvironment environment;
  environment.memory = &memory;
  Make(options, environment);
  const TierPlan plan = TierPlan::Make(options);
  ASSERT_GE(plan.record.groups(), 4);
  const int32_t blocks = plan.staging_units / 2;
  const PositionalPolicy policy{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 0};
  const int32_t tokens = (blocks + 3 + 1) * 64;
  CacheDriver::Sequence a = Admit(1, std::min(tokens, 1300), policy);
  ASSERT_TRUE(driver_->Grow(&a, a.max_tokens - 8).ok());
  cache_->WaitUntilIdle();
  ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());
  const CacheSnapshot before = cache_->Snapshot();
  const uint64_t cold = cache_->Usage(a.handle).tokens[2] / 64;
  memory.waits = 0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());
    cache_->CheckInvariants();
  }
  // A device may still read the units of the group before (V3).
  EXPECT_EQ(memory.waits, 5 * (plan.record.groups() - 1));
  cache_->WaitUntilIdle();
  const uint64_t pages = cache_->Snapshot().links[2].pages - before.links[2].pages;
  // Two groups of each block may wait in staging from one step to the next.
  EXPECT_GE(pages, 4 * cold * kLayers);
  EXPECT_LE(pages, 7 * cold * kLayers);
  driver_.reset();
  cache_.reset();
}

TEST_F(ColdTierTest, WriteRateIsObeyed) {
  TierOptions options = SmallOptions(Budget());
  options.disk_write_bytes_per_s = TieredCache::BlockBytes(options)[2];  // one record a second
  TierEnvironment environment;
  environment.clock = &clock_;
  Make(options, environment);
  CacheDriver::Sequence a = Admit(1, 900, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 890).ok());
  cache_->WaitUntilIdle();
  EXPECT_EQ(cache_->Usage(a.handle).pages[2], 1 * kLayers);
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 6 * 64);  // read as cold all the same
  for (int second = 1; second <= 5; ++second) {
    clock_.Advance(std::chrono::milliseconds(1001));
    cache_->Poll();
    cache_->WaitUntilIdle();
    EXPECT_EQ(cache_->Usage(a.handle).pages[2], (1 + second) * kLayers);
  }
  EXPECT_FALSE(cache_->Snapshot().cold_degraded);
}

TEST_F(ColdTierTest, DamagedRecordIsRecomputed) {
  Make(SmallOptions(Budget()));
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  CacheDriver::Sequence b = Admit(2, 300, kPolicy);
  ASSERT_TRUE(driver_->Grow(&b, 200).ok());
  // Blocks are resident once read, so damage must come before the first read: the blocks that go
  // cold at the last boundary are on disk but no step has read them yet.
  ASSERT_TRUE(driver_->Grow(&a, 1280).ok());
  ASSERT_TRUE(driver_->Step({{&a, 1}}, /*abandon=*/true).ok());
  cache_->WaitUntilIdle();
  CorruptFile();
  const absl::Status status = driver_->Step({{&b, 1}, {&a, 1}});
  ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(TieredCache::SequenceOf(status), a.handle);
  EXPECT_THAT(cache_->TakeDamaged(), ElementsAre(a.handle));
  EXPECT_THAT(cache_->TakeDamaged(), IsEmpty());
  constexpr auto kChecksum = static_cast<size_t>(Damage::kChecksum);
  constexpr auto kShort = static_cast<size_t>(Damage::kShort);
  EXPECT_GE(cache_->Snapshot().integrity_failures[kChecksum], 1u);
  EXPECT_EQ(cache_->Snapshot().integrity_failures[kShort], 0u);
  cache_->CheckInvariants();
  // Until it is reset it stays damaged, and the other sequence goes on.
  EXPECT_EQ(driver_->Step({{&a, 1}}).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(driver_->Step({{&b, 1}}).ok());
  driver_->Reset(&a);
  ASSERT_TRUE(driver_->Grow(&a, 1290).ok());
  driver_->Release(a);
  driver_->Release(b);
  ExpectEmpty();
}

TEST_F(ColdTierTest, UnreadableDiskIsDataLossAndThenRecovers) {
  Make(SmallOptions(Budget()), Faulty());
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 700).ok());
  plan_->SetReads({.error = 1});
  absl::Status status;
  while (status.ok() && a.tokens < 1300) {
    status = driver_->Step({{&a, driver_->PieceLeft(a)}});
    cache_->WaitUntilIdle();  // so that the next step finds new blocks on disk alone
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(cache_->TakeDamaged(), ElementsAre(a.handle));
  EXPECT_GT(cache_->Snapshot().io_read_errors, 0u);
  EXPECT_EQ(cache_->Snapshot().io_write_errors, 0u);
  EXPECT_THAT(cache_->Snapshot().integrity_failures, ElementsAre(0u, 0u));
  plan_->SetReads({});
  driver_->Reset(&a);
  ASSERT_TRUE(driver_->Grow(&a, 1300).ok());
}

// What is missing at the end of a cut file is told apart from bytes that are wrong.
TEST_F(ColdTierTest, ATruncatedFileIsShortRecords) {
  Make(SmallOptions(Budget()), Faulty());
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 1280).ok());
  ASSERT_TRUE(driver_->Step({{&a, 1}}, /*abandon=*/true).ok());
  cache_->WaitUntilIdle();
  ASSERT_EQ(truncate(file_.path().c_str(), 4096), 0);
  const absl::Status status = driver_->Step({{&a, 1}});
  ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  const auto failures = cache_->Snapshot().integrity_failures;
  EXPECT_EQ(failures[static_cast<size_t>(Damage::kChecksum)], 0u);
  EXPECT_GE(failures[static_cast<size_t>(Damage::kShort)], 1u);
}

TEST_F(ColdTierTest, FaultsThatPassAreOvercome) {
  Make(SmallOptions(Budget()), Faulty());
  // Every transfer gets through at the third attempt.
  plan_->SetReads(
      {.error = 0.2, .short_transfer = 0.2, .flip_read = 0.2, .delay = 0.5, .in_a_row_max = 2});
  plan_->SetWrites({.error = 0.2, .short_transfer = 0.2, .delay = 0.5, .in_a_row_max = 2});
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  for (int32_t tokens = 128; tokens <= 1280; tokens += 128) {
    ASSERT_TRUE(driver_->Grow(&a, tokens).ok());
    cache_->WaitUntilIdle();
  }
  CacheSnapshot s = cache_->Snapshot();
  EXPECT_GT(s.io_read_errors, 0u);
  EXPECT_GT(s.io_write_errors, 0u);
  EXPECT_FALSE(s.cold_degraded);
  EXPECT_GT(s.fetch_wait.count(), 0u);
  EXPECT_GT(s.fetch_wait.sum.count(), 0);
  // Every transfer was timed.
  EXPECT_EQ(s.io_read_latency.count(), s.io_reads_completed);
  EXPECT_EQ(s.io_write_latency.count(), s.io_writes_completed);
  EXPECT_GT(s.io_read_latency.sum.count(), 0);
  EXPECT_GT(cache_->Usage(a.handle).cold_wait.count(), 0);
  driver_->Release(a);
  ExpectEmpty();
}

// Writes that never work: blocks stay in warm, are read at cold precision, and admission counts
// cold blocks as warm ones until a write works again.
TEST_F(ColdTierTest, DiskThatTakesNoWritesDegradesToTwoTiers) {
  SmallBudget budget = Budget();
  budget.warm_blocks = 48;
  Make(SmallOptions(budget), FaultyAndTimed());
  plan_->SetWrites({.error = 1, .error_number = ENOSPC});
  CacheDriver::Sequence a = Admit(1, 2400, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 1930).ok());
  cache_->WaitUntilIdle();
  CacheSnapshot s = cache_->Snapshot();
  EXPECT_TRUE(s.cold_degraded);
  EXPECT_GT(s.io_write_errors, 0u);
  EXPECT_EQ(s.io_read_errors, 0u);
  EXPECT_EQ(s.tiers[2].used_bytes, 0u);
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 24 * 64);
  // With the three warm ones, and the two encoded ahead of the next piece.
  EXPECT_EQ(cache_->Usage(a.handle).pages[1], 29 * kLayers);
  const absl::Status refused = cache_->Admit(2400, kPolicy).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("takes no writes"));
  // The pause after failures only ends with time; then the disk works again.
  plan_->SetWrites({});
  cache_->Poll();
  EXPECT_TRUE(cache_->Snapshot().cold_degraded);
  clock_.Advance(std::chrono::seconds(11));
  cache_->Poll();
  cache_->WaitUntilIdle();
  s = cache_->Snapshot();
  EXPECT_FALSE(s.cold_degraded);
  EXPECT_EQ(s.tiers[2].tokens, 24u * 64);
  EXPECT_EQ(ColdStore::Inspect(file_.path(), true)->bytes, s.tiers[2].used_bytes);
  ASSERT_TRUE(driver_->Grow(&a, 2000).ok());
  driver_->Release(a);
  ExpectEmpty();
}

// A descriptor that reached the disk though its write is reported as failed: the record counts as
// on disk until it is surely cleared, and nothing is written over it before.
TEST_F(ColdTierTest, UncertainDescriptorsAreClearedBeforeReuse) {
  SmallBudget budget = Budget();
  budget.warm_blocks = 48;
  Make(SmallOptions(budget), FaultyAndTimed());
  const auto expect_truth = [&] {
    cache_->WaitUntilIdle();
    cache_->CheckInvariants();
    EXPECT_EQ(ColdStore::Inspect(file_.path(), true)->bytes,
              cache_->Snapshot().tiers[2].used_bytes);
  };
  plan_->SetWrites({.lost_result = 1, .sectors_only = true});
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 1290).ok());
  expect_truth();
  EXPECT_GT(cache_->Snapshot().tiers[2].used_bytes, 0u);
  EXPECT_EQ(cache_->Snapshot().tiers[2].tokens, 0u);
  plan_->SetWrites({});
  clock_.Advance(std::chrono::seconds(11));
  cache_->Poll();
  expect_truth();
  EXPECT_EQ(cache_->Snapshot().tiers[2].tokens, 14u * 64);
  driver_->Release(a);
  ExpectEmpty();
}

TEST_F(ColdTierTest, WarmFullBehindABrokenDiskNamesTheSequence) {
  Make(SmallOptions(Budget()), FaultyAndTimed());
  CacheDriver::Sequence other = Admit(7, 200, PositionalPolicy{});
  ASSERT_TRUE(driver_->Grow(&other, 190).ok());
  plan_->SetWrites({.error = 1});
  CacheDriver::Sequence a = Admit(1, 2400, kPolicy);
  const absl::Status status = driver_->Grow(&a, 2400);
  ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(TieredCache::SequenceOf(status), a.handle);
  EXPECT_THAT(status.message(), HasSubstr("warm tier"));
  cache_->CheckInvariants();
  ASSERT_TRUE(driver_->Step({{&other, 1}}).ok());
  driver_->Release(a);
  driver_->Release(other);
  ExpectEmpty();
}

// A disk that answers nothing for a while: steps go on as long as warm has room.
TEST_F(ColdTierTest, StuckDiskStopsNoStepWhileWarmHasRoom) {
  SmallBudget budget = Budget();
  budget.warm_blocks = 48;
  Make(SmallOptions(budget), Faulty());
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  plan_->Hold();
  ASSERT_TRUE(driver_->Grow(&a, 1290).ok());
  EXPECT_EQ(cache_->Snapshot().tiers[2].used_bytes, 0u);
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 14 * 64);
  // Reported as degraded once a write has taken a second.
  for (int i = 0; i < 500 && !cache_->Snapshot().cold_degraded; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(cache_->Snapshot().cold_degraded);
  plan_->Open();
  cache_->WaitUntilIdle();
  EXPECT_FALSE(cache_->Snapshot().cold_degraded);
  EXPECT_EQ(cache_->Usage(a.handle).pages[2], 14 * kLayers);
  ASSERT_TRUE(driver_->Grow(&a, 1300).ok());
}

// A read that never comes: given up after the patience, as data lost.
TEST_F(ColdTierTest, StuckReadsAreGivenUp) {
  TierEnvironment environment = Faulty();
  environment.patience = std::chrono::milliseconds(50);
  Make(SmallOptions(Budget()), environment);
  CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
  ASSERT_TRUE(driver_->Grow(&a, 1280).ok());
  ASSERT_TRUE(driver_->Step({{&a, 1}}, /*abandon=*/true).ok());
  cache_->WaitUntilIdle();
  plan_->Hold();
  EXPECT_EQ(driver_->Step({{&a, 1}}).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(cache_->TakeDamaged(), ElementsAre(a.handle));
  cache_->CheckInvariants();
  plan_->Open();
  driver_->Reset(&a);
  ASSERT_TRUE(driver_->Grow(&a, 1300).ok());
  driver_->Release(a);
  ExpectEmpty();
}

// Sequences that go away while their blocks are being encoded, written and read.
TEST_F(ColdTierTest, ReleaseInFlightReturnsEveryByte) {
  SmallBudget budget = Budget();
  budget.geometry = {4, 1, 16};
  budget.staging_units = 128;
  Make(SmallOptions(budget), Faulty());
  plan_->SetReads({.delay = 0.5, .delay_max = std::chrono::microseconds(300)});
  plan_->SetWrites({.delay = 0.5, .delay_max = std::chrono::microseconds(300)});
  const PositionalPolicy policy{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 1};
  for (int cycle = 0; cycle < 1000; ++cycle) {
    auto a = driver_->Admit(cycle % 7, 700, policy);
    ASSERT_TRUE(a.ok()) << a.status();
    ASSERT_TRUE(driver_->Grow(&*a, 64 * (1 + cycle % 10)).ok());
    if (cycle % 3 == 0) driver_->Reset(&*a);
    driver_->Release(*a);
    if (cycle % 50 == 0) cache_->CheckInvariants();
  }
  ExpectEmpty();
  EXPECT_EQ(ColdStore::Inspect(file_.path(), true)->records, 0u);
}

TEST_F(ColdTierTest, CacheMayGoAwayWithEverythingInFlight) {
  for (int round = 0; round < 10; ++round) {
    Make(SmallOptions(Budget()), Faulty());
    plan_->SetWrites({.delay = 1, .delay_max = std::chrono::microseconds(3000)});
    plan_->SetReads({.delay = 1, .delay_max = std::chrono::microseconds(3000)});
    CacheDriver::Sequence a = Admit(1, 1300, kPolicy);
    ASSERT_TRUE(driver_->Grow(&a, 600 + 70 * round).ok());
    cache_.reset();
  }
}

}  // namespace
}  // namespace strata
