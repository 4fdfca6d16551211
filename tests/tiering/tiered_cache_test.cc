#include "tiering/tiered_cache.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tiering/cache_fixture.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PositionalPolicy kExact{};
constexpr PositionalPolicy kThreeTiers{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 3};
constexpr int kLayers = 12;

class TieredCacheTest : public CacheTest {
 protected:
  TierOptions ThreeTiers() {
    return SmallOptions({.hot_blocks = 24,
                         .warm_blocks = 24,
                         .cold_blocks = 96,
                         .staging_units = 260,
                         .cold_path = file_.path()});
  }
  ScratchPath file_;
};

TEST_F(TieredCacheTest, HotOnlyServesTwoSequences) {
  Make(SmallOptions({.hot_blocks = 40}));
  CacheDriver::Sequence a = Admit(1, 600, kExact);
  CacheDriver::Sequence b = Admit(2, 300, kExact);
  ASSERT_TRUE(driver_->Grow(&a, 500).ok());
  ASSERT_TRUE(driver_->Grow(&b, 190).ok());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(driver_->Step({{&a, 1}, {&b, 1}}).ok());
    cache_->CheckInvariants();
  }
  EXPECT_EQ(cache_->Usage(a.handle).tokens[0], 520);
  EXPECT_EQ(cache_->Snapshot().tiers[0].tokens, 730u);
  EXPECT_EQ(cache_->Snapshot().io_engine, "none");
  driver_->Release(a);
  driver_->Release(b);
  ExpectEmpty();
}

TEST_F(TieredCacheTest, WarmBlocksAreReadAsTheCodecWroteThem) {
  Make(SmallOptions({.hot_blocks = 16, .warm_blocks = 64}));
  CacheDriver::Sequence a =
      Admit(1, 2000, {.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 1 << 20});
  ASSERT_TRUE(driver_->Grow(&a, 1930).ok());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());
  cache_->WaitUntilIdle();
  cache_->CheckInvariants();
  // The piece at 1920 begins at block 30: blocks 1..27 are more than two behind it.
  EXPECT_EQ(cache_->Usage(a.handle).tokens[1], 27 * 64);
  // I4 of values that are nearly uniform over 16 cells: rms error 1/sqrt(12) of a cell, rms value
  // 16/sqrt(12) cells, so 1/16; the outermost values of few tokens move that a little.
  EXPECT_NEAR(cache_->Usage(a.handle).k_relative_error, 1.0 / 16, 0.01);
  const CacheSnapshot s = cache_->Snapshot();
  EXPECT_NEAR(s.v_relative_error[1], 1.0 / 16, 0.01);
  // The latest sample is of layer 1, which the cold tier reads as I2: cells four times as wide.
  EXPECT_NEAR(s.k_relative_error[2], 1.0 / 4, 0.04);
  EXPECT_NEAR(s.v_relative_error[2], 1.0 / 4, 0.04);
  // What steps wanted of blocks in memory they found there.
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(s.tiers[i].lookups, 0u);
    EXPECT_EQ(s.tiers[i].hits, s.tiers[i].lookups);
  }
  EXPECT_EQ(s.tiers[2].lookups, 0u);
}

// The counters of a scripted run equal the moves worked out by hand, and what is on disk.
TEST_F(TieredCacheTest, CountersTellTheTruth) {
  Make(ThreeTiers());
  CacheDriver::Sequence a = Admit(1, 1300, kThreeTiers);
  ASSERT_TRUE(driver_->Grow(&a, 1289).ok());
  cache_->WaitUntilIdle();
  ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());  // reads every cold block from disk, if none did
  cache_->WaitUntilIdle();
  cache_->CheckInvariants();
  // Pieces of two blocks; the last begins at block 20. Hot: block 0, 18, 19 and the piece's block
  // 20. Warm: 15..17. Cold: 1..14. The next piece never comes, so nothing is encoded ahead for it.
  const auto bytes = TieredCache::BlockBytes(cache_->options());
  const CacheSnapshot s = cache_->Snapshot();
  const SequenceUsage usage = cache_->Usage(a.handle);
  EXPECT_THAT(usage.tokens, ElementsAre(3 * 64 + 10, 3 * 64, 14 * 64));
  EXPECT_THAT(usage.pages, ElementsAre(4 * kLayers, 3 * kLayers, 14 * kLayers));
  EXPECT_THAT(usage.bytes, ElementsAre(4 * bytes[0], 3 * bytes[1], 14 * bytes[2]));
  EXPECT_EQ(s.quantize.count(), 17u);
  EXPECT_GT(s.quantize.sum.count(), 0);
  EXPECT_EQ(s.demoted_pages[0], 17u * kLayers);
  EXPECT_EQ(s.demoted_pages[1], 14u * kLayers);
  EXPECT_EQ(s.links[0].bytes, 17 * bytes[1]);
  EXPECT_EQ(s.links[0].f16_bytes, 17 * bytes[0]);
  EXPECT_EQ(s.links[0].pages, 17u * kLayers);
  EXPECT_EQ(s.links[1].bytes, 14 * bytes[2]);
  EXPECT_EQ(s.links[1].f16_bytes, 14 * bytes[0]);
  EXPECT_EQ(usage.links[1].bytes, s.links[1].bytes);
  for (int i = 0; i < kTierCount; ++i) {
    EXPECT_EQ(s.tiers[i].used_bytes, usage.bytes[i]);
    EXPECT_EQ(s.tiers[i].tokens, static_cast<uint64_t>(usage.tokens[i]));
    EXPECT_EQ(s.tiers[i].pages, static_cast<uint64_t>(usage.pages[i]));
    EXPECT_EQ(s.tiers[i].f16_bytes, usage.pages[i] / kLayers * bytes[0]);
    EXPECT_EQ(s.tiers[i].free_pages,
              (s.tiers[i].capacity_bytes - usage.bytes[i]) / bytes[i] * kLayers);
  }
  // A head's K is a plane or two of 512 bytes and 128 of parameters, its V those and 256: of 64 x
  // 32 values each. Cold: the K of two layers as a warm one.
  EXPECT_EQ(s.tiers[0].bits_per_value, 16.0);
  EXPECT_EQ(s.tiers[1].bits_per_value, 8.0 * (1024 + 128 + 1024 + 256) / (2 * 64 * 32));
  EXPECT_EQ(s.tiers[1].k_bits_per_value, 8.0 * (1024 + 128) / (64 * 32));
  EXPECT_EQ(s.tiers[1].v_bits_per_value, 8.0 * (1024 + 256) / (64 * 32));
  EXPECT_NEAR(
      s.tiers[2].bits_per_value,
      8.0 * (2 * (1024 + 128 + 512 + 256) + 10 * (512 + 128 + 512 + 256)) / (2 * 64 * 32) / 12,
      1e-9);
  const SlotNeed need = WorstCase(kThreeTiers, 1300, 2);
  for (int i = 0; i < kTierCount; ++i) {
    EXPECT_EQ(s.tiers[i].reserved_bytes, need.blocks[i] * bytes[i]);
    EXPECT_GE(usage.peak_bytes[i], usage.bytes[i]);
  }
  EXPECT_EQ(s.io_reads_submitted, s.io_reads_completed);
  EXPECT_GE(s.links[2].pages, 14u * kLayers);
  EXPECT_EQ(s.io_writes_completed, 2u * 14);  // data and descriptor
  const auto disk = ColdStore::Inspect(file_.path(), true);
  ASSERT_TRUE(disk.ok()) << disk.status();
  EXPECT_EQ(disk->bytes, s.tiers[2].used_bytes);
  EXPECT_EQ(disk->damaged_records, 0u);

  driver_->Release(a);
  const CacheSnapshot after = cache_->Snapshot();
  EXPECT_EQ(after.tiers[0].dropped_pages, 4u * kLayers);
  EXPECT_EQ(after.tiers[1].dropped_pages, 3u * kLayers);
  EXPECT_EQ(after.tiers[2].dropped_pages, 14u * kLayers);
  ExpectEmpty();
  EXPECT_EQ(ColdStore::Inspect(file_.path(), true)->records, 0u);
}

// Everything in F16 in every tier: what attention reads is bit for bit what was appended, wherever
// it lies.
TEST_F(TieredCacheTest, AllF16TiersChangeNothing) {
  TierOptions options = ThreeTiers();
  options.formats = TierFormats::Uniform(kLayers, {}, {});
  const auto bytes = TieredCache::BlockBytes(options);
  options.warm_bytes = 24 * (bytes[1] + 512);
  options.cold_bytes = 40 * (bytes[2] + 4096);
  options.staging_bytes = 16 << 20;
  options.max_context = 1500;
  Make(options);
  CacheDriver::Sequence a = Admit(1, 1300, kThreeTiers);
  ASSERT_TRUE(driver_->Grow(&a, 1300).ok());
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 14 * 64);
  EXPECT_EQ(cache_->Usage(a.handle).k_relative_error, 0);
}

// A window shorter than a piece: blocks leave at the boundary right after their last token, so the
// step waits for their encoding.
TEST_F(TieredCacheTest, WindowsShorterThanAPieceWork) {
  Make(ThreeTiers());
  CacheDriver::Sequence a = Admit(1, 1300, {.sink_blocks = 1, .hot_blocks = 0, .warm_blocks = 0});
  ASSERT_TRUE(driver_->Grow(&a, 1300).ok());
  cache_->WaitUntilIdle();
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 19 * 64);
  EXPECT_GT(cache_->Snapshot().move_wait.count(), 0u);
  cache_->CheckInvariants();
}

TEST_F(TieredCacheTest, NonFiniteBlockStaysExact) {
  Make(ThreeTiers());
  CacheDriver::Sequence a = Admit(1, 1300, kThreeTiers);
  a.poisoned = {4};
  ASSERT_TRUE(driver_->Grow(&a, 1300).ok());
  cache_->WaitUntilIdle();
  cache_->CheckInvariants();
  EXPECT_EQ(cache_->Snapshot().refused_blocks, 1u);
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 13 * 64);
  driver_->Release(a);
  ExpectEmpty();
}

// Refused blocks eat the hot slots that nobody was promised; when those are gone the sequence
// cannot go on, and says so.
TEST_F(TieredCacheTest, RefusedBlocksNeverTakeAnothersSlots) {
  Make(SmallOptions({.hot_blocks = 12, .warm_blocks = 40}));
  const PositionalPolicy policy{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 1 << 20};
  CacheDriver::Sequence a = Admit(1, 900, policy);
  CacheDriver::Sequence b = Admit(2, 900, policy);
  const auto spare = static_cast<int32_t>(cache_->Snapshot().tiers[0].free_pages / kLayers) - 10;
  ASSERT_GE(spare, 2);
  ASSERT_LT(spare, 9);
  for (int32_t block = 1; block < 15; ++block) a.poisoned.insert(block);
  ASSERT_TRUE(driver_->Grow(&b, 300).ok());
  const absl::Status status = driver_->Grow(&a, 900);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(TieredCache::SequenceOf(status), a.handle);
  cache_->CheckInvariants();
  EXPECT_EQ(cache_->Usage(a.handle).pages[0], (5 + spare) * kLayers);
  ASSERT_TRUE(driver_->Grow(&b, 900).ok());
  driver_->Release(a);
  driver_->Release(b);
  ExpectEmpty();
}

TEST_F(TieredCacheTest, ResetStartsOverWithTheSameReservation) {
  Make(ThreeTiers());
  CacheDriver::Sequence a = Admit(1, 1300, kThreeTiers);
  const uint64_t reserved = cache_->Snapshot().tiers[2].reserved_bytes;
  ASSERT_TRUE(driver_->Grow(&a, 1000).ok());
  driver_->Reset(&a);
  cache_->CheckInvariants();
  a.content = 2;
  ASSERT_TRUE(driver_->Grow(&a, 1300).ok());
  EXPECT_EQ(cache_->Snapshot().tiers[2].reserved_bytes, reserved);
  driver_->Release(a);
  ExpectEmpty();
}

TEST_F(TieredCacheTest, AbandonedStepCanBeRepeated) {
  Make(ThreeTiers());
  CacheDriver::Sequence a = Admit(1, 1300, kThreeTiers);
  while (a.tokens < 1290) {
    const int32_t count = driver_->PieceLeft(a) > 100 ? driver_->PieceLeft(a) : 1;
    ASSERT_TRUE(driver_->Step({{&a, count}}, /*abandon=*/true).ok());
    cache_->CheckInvariants();
    ASSERT_TRUE(driver_->Grow(&a, std::min(a.tokens + driver_->PieceLeft(a), 1290)).ok());
    cache_->CheckInvariants();
  }
}

TEST_F(TieredCacheTest, RefusesStepsThatMakeNoSense) {
  Make(SmallOptions({.hot_blocks = 40}));
  const auto a = cache_->Admit(300, kExact);
  const auto code = [&](const StepSlice& slice) {
    const auto step = cache_->PrepareStep({{slice}});
    EXPECT_EQ(TieredCache::SequenceOf(step.status()), *a);
    return step.status().code();
  };
  EXPECT_EQ(code({*a, 1, 1}), absl::StatusCode::kInvalidArgument);    // it holds none
  EXPECT_EQ(code({*a, 0, 0}), absl::StatusCode::kInvalidArgument);    // no tokens
  EXPECT_EQ(code({*a, 0, 129}), absl::StatusCode::kInvalidArgument);  // two pieces
  EXPECT_EQ(code({*a, 0, 301}), absl::StatusCode::kInvalidArgument);  // beyond its admission
  const StepSlice twice[] = {{*a, 0, 1}, {*a, 0, 1}};
  EXPECT_THAT(cache_->PrepareStep(twice).status().message(), HasSubstr("twice"));
  EXPECT_EQ(TieredCache::SequenceOf(absl::OkStatus()), 0u);
}

TEST_F(TieredCacheTest, AdmissionReservesTheWorstCase) {
  Make(SmallOptions({.hot_blocks = 24, .warm_blocks = 24}));
  const PositionalPolicy warm{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 1 << 20};
  EXPECT_EQ(cache_->Admit(0, kExact).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(cache_->Admit(4097, kExact).status().code(), absl::StatusCode::kOutOfRange);
  const auto never = cache_->Admit(64 * 40, kExact);
  EXPECT_EQ(never.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(never.status().message(), HasSubstr("hot needs"));
  // Cold, but there is no cold tier.
  EXPECT_EQ(cache_->Admit(1300, kThreeTiers).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(cache_->Admit(100, {.sink_blocks = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto a = cache_->Admit(64 * 20, warm);  // 15 of 24 warm blocks
  ASSERT_TRUE(a.ok()) << a.status();
  const auto second = cache_->Admit(64 * 20, warm);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(second.status().message(), HasSubstr("warm needs"));
  cache_->Release(*a);
  const auto again = cache_->Admit(64 * 20, warm);
  ASSERT_TRUE(again.ok());
  EXPECT_NE(*again, *a);
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(cache_->Admit(10, kExact).ok());
  EXPECT_THAT(cache_->Admit(10, kExact).status().message(), HasSubstr("8 sequences"));
}

TEST_F(TieredCacheTest, StagingIsReservedToo) {
  TierOptions options = ThreeTiers();
  options.max_context = 1300;
  Make(options);
  const auto units = static_cast<int32_t>(TierPlan::Make(options).staging_units);
  // 14 cold blocks of two units each.
  std::vector<SequenceHandle> admitted;
  absl::StatusOr<SequenceHandle> next = cache_->Admit(1300, kThreeTiers);
  while (next.ok()) {
    admitted.push_back(*next);
    next = cache_->Admit(1300, kThreeTiers);
  }
  EXPECT_EQ(next.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(static_cast<int32_t>(admitted.size()) * 28, units);
  options.staging_bytes = options.staging_bytes / 4;
  options.hot_bytes *= 4;
  options.warm_bytes *= 4;
  options.cold_bytes *= 4;
  cache_.reset();
  Make(options);
  const int32_t fewer = TierPlan::Make(options).staging_units;
  for (int32_t i = 0; i < fewer / 28; ++i) ASSERT_TRUE(cache_->Admit(1300, kThreeTiers).ok());
  EXPECT_THAT(cache_->Admit(1300, kThreeTiers).status().message(), HasSubstr("staging needs"));
}

TEST_F(TieredCacheTest, BudgetsAboveMemoryAreRefusedBeforeAllocating) {
  TierOptions options = SmallOptions({.hot_blocks = 8});
  options.hot_bytes = size_t{1} << 50;
  const auto cache = TieredCache::Create(options, codec_.get(), HostMemory());
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(cache.status().message(), HasSubstr("bytes of memory that fit"));
  options = ThreeTiers();
  options.staging_bytes = size_t{1} << 50;
  EXPECT_EQ(TieredCache::Create(options, codec_.get(), HostMemory()).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_NE(access(file_.path().c_str(), F_OK), 0);
}

TEST_F(TieredCacheTest, UnusableColdPathIsAnErrorAtTheStart) {
  TierOptions options = ThreeTiers();
  options.cold_path = "/no/such/directory/store";
  EXPECT_EQ(TieredCache::Create(options, codec_.get(), HostMemory()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TieredCacheTest, StaleHandlesStopTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the cache has threads of its own
  Make(SmallOptions({.hot_blocks = 40}));
  const auto a = cache_->Admit(300, kExact);
  cache_->Release(*a);
  ASSERT_TRUE(cache_->Admit(300, kExact).ok());
  EXPECT_DEATH(cache_->Release(*a), "check failed");
  EXPECT_DEATH(static_cast<void>(cache_->Usage(0)), "check failed");
}

}  // namespace
}  // namespace strata
