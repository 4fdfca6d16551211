#pragma once

#include <memory>

#include "gtest/gtest.h"
#include "kernels/reference/attention_reference.h"
#include "tests/tiering/cache_driver.h"

namespace strata {

// A cache with the driver that plays its engine.
class CacheTest : public ::testing::Test {
 protected:
  void Make(const TierOptions& options, const TierEnvironment& environment = {}) {
    driver_.reset();
    cache_.reset();
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
  // Every byte of every tier is back and nothing is promised.
  void ExpectEmpty() {
    cache_->WaitUntilIdle();
    cache_->CheckInvariants();
    const CacheSnapshot snapshot = cache_->Snapshot();
    for (const TierSnapshot& tier : snapshot.tiers) {
      EXPECT_EQ(tier.used_bytes, 0u);
      EXPECT_EQ(tier.reserved_bytes, 0u);
      EXPECT_EQ(tier.tokens, 0u);
      EXPECT_EQ(tier.pages, 0u);
    }
    EXPECT_EQ(snapshot.sequences, 0u);
  }

  std::unique_ptr<PageCodec> codec_ = MakeReferencePageCodec();
  std::unique_ptr<TieredCacheImpl> cache_;
  std::unique_ptr<CacheDriver> driver_;
};

}  // namespace strata
