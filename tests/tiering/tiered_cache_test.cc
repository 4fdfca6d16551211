#include "tiering/tiered_cache.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/attention_reference.h"
#include "tests/tiering/cache_driver.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr PositionalPolicy kExact{};

class TieredCacheTest : public ::testing::Test {
 protected:
  void Make(const TierOptions& options, const TierEnvironment& environment = {}) {
    auto cache = TieredCacheImpl::Create(options, codec_.get(), environment);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    driver_ = std::make_unique<CacheDriver>(cache_.get(), codec_.get());
  }
  CacheDriver::Sequence Admit(uint64_t content, int32_t max_tokens,
                              const PositionalPolicy& policy) {
    auto sequence = driver_->Admit(content, max_tokens, policy);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return sequence.value_or(CacheDriver::Sequence{});
  }

  std::unique_ptr<PageCodec> codec_ = MakeReferencePageCodec();
  std::unique_ptr<TieredCacheImpl> cache_;
  std::unique_ptr<CacheDriver> driver_;
};

TEST_F(TieredCacheTest, HotOnlyServesTwoSequences) {
  Make(SmallOptions({.hot_blocks = 40}));
  CacheDriver::Sequence a = Admit(1, 600, kExact);
  CacheDriver::Sequence b = Admit(2, 300, kExact);
  ASSERT_TRUE(driver_->Grow(&a, 500).ok());
  ASSERT_TRUE(driver_->Grow(&b, 130).ok());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(driver_->Step({{&a, 1}, {&b, 1}}).ok());
    cache_->CheckInvariants();
  }
  EXPECT_EQ(cache_->Usage(a.handle).tokens[0], 600);
  EXPECT_EQ(cache_->Snapshot().tiers[0].tokens, 830u);
  driver_->Release(a);
  driver_->Release(b);
  EXPECT_EQ(cache_->Snapshot().tiers[0].used_bytes, 0u);
  EXPECT_EQ(cache_->Snapshot().tiers[0].reserved_bytes, 0u);
  EXPECT_EQ(cache_->Snapshot().sequences, 0u);
}

TEST_F(TieredCacheTest, WarmBlocksAreReadAsTheCodecWroteThem) {
  Make(SmallOptions({.hot_blocks = 16, .warm_blocks = 64}));
  const PositionalPolicy policy{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 1 << 20};
  CacheDriver::Sequence a = Admit(1, 2000, policy);
  ASSERT_TRUE(driver_->Grow(&a, 1950).ok());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());
  cache_->WaitUntilIdle();
  cache_->CheckInvariants();
  // Piece 1920..2047 begins at block 30: blocks 1..27 are more than two behind it.
  EXPECT_EQ(cache_->Usage(a.handle).tokens[1], 27 * 64);
  EXPECT_EQ(cache_->Snapshot().demoted_pages[0], 27u * 12);
  EXPECT_GT(cache_->Usage(a.handle).k_relative_error, 0);
}

TEST_F(TieredCacheTest, ColdBlocksComeBackFromDisk) {
  const ScratchPath file;
  Make(SmallOptions(
      {.hot_blocks = 16, .warm_blocks = 16, .cold_blocks = 64, .cold_path = file.path()}));
  const PositionalPolicy policy{.sink_blocks = 1, .hot_blocks = 2, .warm_blocks = 3};
  CacheDriver::Sequence a = Admit(1, 2000, policy);
  ASSERT_TRUE(driver_->Grow(&a, 1950).ok());
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(driver_->Step({{&a, 1}}).ok());
    cache_->CheckInvariants();
  }
  cache_->WaitUntilIdle();
  EXPECT_EQ(cache_->Usage(a.handle).tokens[1], 3 * 64);
  EXPECT_EQ(cache_->Usage(a.handle).tokens[2], 24 * 64);
  const CacheSnapshot snapshot = cache_->Snapshot();
  EXPECT_EQ(snapshot.demoted_pages[1], 24u * 12);
  EXPECT_GT(snapshot.io_reads_completed, 0u);
  const auto disk = ColdStore::Inspect(file.path(), true);
  ASSERT_TRUE(disk.ok()) << disk.status();
  EXPECT_EQ(disk->bytes, snapshot.tiers[2].used_bytes);
  EXPECT_EQ(disk->records, 24u);
}

}  // namespace
}  // namespace strata
