#include "server/engine/policy_resolver.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kUnlimited = PositionalPolicy::kUnlimited;
constexpr PositionalPolicy kExact = {1, kUnlimited, 0};
constexpr PositionalPolicy kDefault = {2, 16, 64};

// Pieces of 256 tokens: four blocks.
TierOptions Ladder(TensorKinds warm, TensorKinds cold) {
  TierOptions tiers;
  tiers.geometry = {.layers = 4, .kv_heads = 1, .head_dim = 16};
  tiers.formats.warm.assign(4, warm);
  tiers.formats.cold.assign(4, cold);
  tiers.hot_bytes = tiers.warm_bytes = tiers.cold_bytes = 1 << 20;
  return tiers;
}
TierOptions I4I2() { return Ladder({KvKind::kI4, KvKind::kI4}, {KvKind::kI2, KvKind::kI2}); }

PositionalPolicy Resolve(const PolicyRequest& request, const TierOptions& tiers = I4I2()) {
  const auto policy = ResolvePolicy(request, tiers, kDefault);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.value_or(PositionalPolicy{-1, -1, -1});
}

TEST(PolicyResolverTest, Presets) {
  EXPECT_EQ(Resolve({}), kDefault);
  EXPECT_EQ(Resolve({.preset = PolicyPreset::kBalanced}), kDefault);
  EXPECT_EQ(Resolve({.preset = PolicyPreset::kExact}), (PositionalPolicy{2, kUnlimited, 0}));
  EXPECT_EQ(Resolve({.preset = PolicyPreset::kCompact}), (PositionalPolicy{1, 4, 8}));
}

TEST(PolicyResolverTest, CompactNeverExceedsTheServersOwnWindows) {
  const PositionalPolicy tight = {1, 4, 3};
  EXPECT_EQ(*ResolvePolicy({.preset = PolicyPreset::kCompact}, I4I2(), tight), tight);
  // Everything fits hot: compact still sinks.
  EXPECT_EQ(*ResolvePolicy({.preset = PolicyPreset::kCompact}, I4I2(), kExact),
            (PositionalPolicy{1, 4, 8}));
}

TEST(PolicyResolverTest, SizesRoundUpToBlocksAndToTheLeastThatIsSound) {
  EXPECT_EQ(Resolve({.sink_tokens = 0}).sink_blocks, 1);
  EXPECT_EQ(Resolve({.sink_tokens = 65}).sink_blocks, 2);
  EXPECT_EQ(Resolve({.sink_tokens = 640}).sink_blocks, 10);
  EXPECT_EQ(Resolve({.recent_tokens = 0}).hot_blocks, 4);
  EXPECT_EQ(Resolve({.recent_tokens = 257}).hot_blocks, 5);
  EXPECT_EQ(Resolve({.recent_tokens = std::numeric_limits<int32_t>::max()}).hot_blocks, 1 << 25);
  EXPECT_EQ(Resolve({.preset = PolicyPreset::kExact, .recent_tokens = 64}).hot_blocks, kUnlimited);
}

TEST(PolicyResolverTest, TheHotWindowHoldsAPieceAtLeast) {
  EXPECT_EQ(*ResolvePolicy({}, I4I2(), {1, 2, 8}), (PositionalPolicy{1, 4, 8}));
}

TEST(PolicyResolverTest, ARecentWindowOnAnAllHotServerLeavesTheRestWarm) {
  EXPECT_EQ(*ResolvePolicy({.recent_tokens = 512}, I4I2(), kExact),
            (PositionalPolicy{1, 8, kUnlimited}));
}

TEST(PolicyResolverTest, NegativeSizesAreRefusedByName) {
  const auto sink = ResolvePolicy({.sink_tokens = -1}, I4I2(), kDefault);
  EXPECT_EQ(sink.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(sink.status().message(), HasSubstr("sink_tokens is -1"));
  const auto recent = ResolvePolicy({.recent_tokens = -7}, I4I2(), kDefault);
  EXPECT_THAT(recent.status().message(), HasSubstr("recent_tokens is -7"));
}

TEST(PolicyResolverTest, WithoutColdTheRestIsWarm) {
  EXPECT_EQ(Resolve({.allow_cold = false}), (PositionalPolicy{2, 16, kUnlimited}));
  EXPECT_EQ(Resolve({.allow_cold = true}), kDefault);
  TierOptions no_cold = I4I2();
  no_cold.cold_bytes = 0;
  EXPECT_EQ(Resolve({}, no_cold), (PositionalPolicy{2, 16, kUnlimited}));
  no_cold.warm_bytes = 0;
  EXPECT_EQ(Resolve({}, no_cold), (PositionalPolicy{2, kUnlimited, 0}));
}

TEST(PolicyResolverTest, AFloorTakesAwayTheTiersBelowIt) {
  EXPECT_EQ(Resolve({.min_format = KvKind::kI2}), kDefault);
  EXPECT_EQ(Resolve({.min_format = KvKind::kI4}), (PositionalPolicy{2, 16, kUnlimited}));
  EXPECT_EQ(Resolve({.min_format = KvKind::kF16}), (PositionalPolicy{2, kUnlimited, 0}));
  // Compact asks for cold, the floor forbids it.
  EXPECT_EQ(Resolve({.preset = PolicyPreset::kCompact, .min_format = KvKind::kI4}),
            (PositionalPolicy{1, 4, kUnlimited}));
  // An F16 ladder meets any floor as it is.
  const TierOptions f16 = Ladder({KvKind::kF16, KvKind::kF16}, {KvKind::kF16, KvKind::kF16});
  EXPECT_EQ(Resolve({.min_format = KvKind::kF16}, f16), kDefault);
  // Cold formats say nothing where there is no cold tier.
  TierOptions no_cold = I4I2();
  no_cold.cold_bytes = 0;
  no_cold.formats.cold.clear();
  EXPECT_EQ(Resolve({.min_format = KvKind::kF16}, no_cold), (PositionalPolicy{2, kUnlimited, 0}));
}

TEST(PolicyResolverTest, OneLowTensorOfOneLayerCounts) {
  TierOptions tiers = Ladder({KvKind::kI4, KvKind::kI4}, {KvKind::kI4, KvKind::kI4});
  EXPECT_EQ(Resolve({.min_format = KvKind::kI4}, tiers), kDefault);
  tiers.formats.cold[2].v = KvKind::kI2;
  EXPECT_EQ(Resolve({.min_format = KvKind::kI4}, tiers), (PositionalPolicy{2, 16, kUnlimited}));
}

TEST(PolicyResolverTest, AFloorBetweenTheTiersIsRefused) {
  const TierOptions tiers = Ladder({KvKind::kI4, KvKind::kI2}, {KvKind::kI2, KvKind::kI2});
  const auto policy = ResolvePolicy({.min_format = KvKind::kI4}, tiers, kDefault);
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(policy.status().message(), HasSubstr("min_format asks for 4 bits"));
  EXPECT_THAT(policy.status().message(), HasSubstr("warm tier stores 2"));
}

}  // namespace
}  // namespace strata
