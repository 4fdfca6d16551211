#include "server/config/derive_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tiering/tier_plan.h"
#include "tiering/tiered_cache.h"

namespace strata {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;
const ModelFacts kModel = {{30, 3, 64}, 8192, 1, 2};
const MachineFacts kMachine = {16 * kGiB, 64 * kGiB};

ServerOptions Options() {
  ServerOptions options;
  options.model.path = "m.gguf";
  return options;
}

TEST(DeriveOptionsTest, ABigMachineKeepsEverythingHot) {
  const auto tiers = DeriveTierOptions(Options(), kModel, {1024 * kGiB, 0});
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_EQ(tiers->max_context, 8192);
  EXPECT_EQ(tiers->cold_bytes, 0u);
  EXPECT_EQ(tiers->staging_bytes, 0u);
  // Enough for all, and no more than an eighth and a piece a sequence beyond that.
  const size_t block = TieredCache::BlockBytes(*tiers)[0];
  EXPECT_GE(tiers->hot_bytes, 16 * 128 * block);
  EXPECT_LE(tiers->hot_bytes, 16 * 132 * block * 9 / 8 + 1);
  EXPECT_EQ(TieredCache::DefaultPolicy(*tiers).hot_blocks, PositionalPolicy::kUnlimited);
  EXPECT_FALSE(DeriveEngineOptions(Options(), *tiers).default_policy.has_value());
}

TEST(DeriveOptionsTest, ASmallMachineGetsQuartersAndWindows) {
  const auto tiers = DeriveTierOptions(Options(), kModel, {kGiB, 0});
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_EQ(tiers->hot_bytes, kGiB / 4);
  EXPECT_EQ(tiers->warm_bytes, kGiB / 4);
  EXPECT_LT(TieredCache::DefaultPolicy(*tiers).hot_blocks, 128);
}

TEST(DeriveOptionsTest, ADevicesOwnMemoryBoundsTheHotTierAndNoOther) {
  MachineFacts machine = {kGiB, 0};
  machine.device_available = 100 * kGiB;
  const auto large = DeriveTierOptions(Options(), kModel, machine);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_GE(large->hot_bytes, 16 * 128 * TieredCache::BlockBytes(*large)[0]);
  EXPECT_EQ(large->warm_bytes, kGiB / 4);
  machine.device_available = kGiB;
  const auto small = DeriveTierOptions(Options(), kModel, machine);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->hot_bytes, kGiB - kGiB / 10);
  EXPECT_EQ(small->warm_bytes, kGiB / 4);
}

TEST(DeriveOptionsTest, APathBringsAColdTierWithStagingForAnyPolicy) {
  ServerOptions options = Options();
  options.cache.cold_path = "/tmp/cold";
  const auto tiers = DeriveTierOptions(options, kModel, kMachine);
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_GT(tiers->cold_bytes, 0u);
  EXPECT_LE(tiers->cold_bytes, kMachine.disk_available / 4);
  const TierPlan plan = TierPlan::Make(*tiers);
  EXPECT_GE(plan.staging_units, plan.StagingNeed(128));
  EXPECT_TRUE(plan.CheckMinimum(*tiers).ok());
}

TEST(DeriveOptionsTest, GivenBudgetsAreTakenAsTheyAre) {
  ServerOptions options = Options();
  options.cache.hot_bytes = 111111111;
  options.cache.warm_bytes = 0;
  options.cache.cold_path = "/tmp/cold";
  options.cache.cold_bytes = 0;
  options.limits.max_context = 1000;
  const auto tiers = DeriveTierOptions(options, kModel, kMachine);
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_EQ(tiers->hot_bytes, 111111111u);
  EXPECT_EQ(tiers->warm_bytes, 0u);
  EXPECT_EQ(tiers->cold_bytes, 0u);
  EXPECT_EQ(tiers->max_context, 1000);
}

TEST(DeriveOptionsTest, ColdLayersThatNeedItKeepK) {
  constexpr TensorKinds kI2 = {KvKind::kI2, KvKind::kI2};
  constexpr TensorKinds kKept = {KvKind::kI4, KvKind::kI2};
  ServerOptions options = Options();
  options.cache.cold_k_layers = 3;
  std::vector<float> k_errors(30, 0.01f);
  k_errors[7] = 0.5f;
  k_errors[29] = 0.02f;
  ModelFacts model = kModel;
  model.k_errors = k_errors;
  const auto measured = DeriveTierOptions(options, model, kMachine);
  ASSERT_TRUE(measured.ok()) << measured.status();
  for (int i = 0; i < 30; ++i) {  // the largest, and of equals the first
    EXPECT_EQ(measured->formats.cold[i], i == 7 || i == 29 || i == 0 ? kKept : kI2) << i;
  }
  const auto unknown = DeriveTierOptions(options, kModel, kMachine);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(unknown->formats.cold[i], i == 0 || i == 29 || i == 1 ? kKept : kI2) << i;
  }
  options.cache.cold_k_layers = 512;
  const auto all = DeriveTierOptions(options, kModel, kMachine);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->formats.cold, ::testing::Each(kKept));
}

TEST(DeriveOptionsTest, ColdLayersOverrideWhoKeepsK) {
  ServerOptions options = Options();
  options.cache.cold_k_layers = 4;
  options.cache.cold_layers = {{0, 0, {KvKind::kI2, KvKind::kI2}},
                               {5, 6, {KvKind::kI4, KvKind::kI2}}};
  const auto tiers = DeriveTierOptions(options, kModel, kMachine);
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  const auto& cold = tiers->formats.cold;
  EXPECT_EQ(cold[0], (TensorKinds{KvKind::kI2, KvKind::kI2}));
  EXPECT_EQ(cold[1], (TensorKinds{KvKind::kI4, KvKind::kI2}));
  EXPECT_EQ(cold[4], (TensorKinds{KvKind::kI2, KvKind::kI2}));
  EXPECT_EQ(cold[6], (TensorKinds{KvKind::kI4, KvKind::kI2}));
  EXPECT_EQ(cold[29], (TensorKinds{KvKind::kI4, KvKind::kI2}));
}

TEST(DeriveOptionsTest, WhatTheModelCannotDoIsRefused) {
  ServerOptions options = Options();
  options.limits.max_context = 8193;
  EXPECT_THAT(std::string(DeriveTierOptions(options, kModel, kMachine).status().message()),
              HasSubstr("8192"));
  options = Options();
  options.cache.cold_layers = {{29, 30, {KvKind::kI2, KvKind::kI2}}};
  EXPECT_THAT(std::string(DeriveTierOptions(options, kModel, kMachine).status().message()),
              HasSubstr("layer 30"));
  options = Options();
  options.cache.warm_format = {KvKind::kI2, KvKind::kI2};
  options.cache.cold_format = {KvKind::kI4, KvKind::kI4};
  EXPECT_TRUE(absl::IsInvalidArgument(DeriveTierOptions(options, kModel, kMachine).status()));
}

TEST(DeriveOptionsTest, WindowsOverrideWhatTheBudgetsGive) {
  ServerOptions options = Options();
  options.cache.hot_window = 512;
  const auto tiers = DeriveTierOptions(options, kModel, {1024 * kGiB, 0});
  ASSERT_TRUE(tiers.ok());
  // The rest is warm, not cold: nothing else was said.
  EXPECT_EQ(DeriveEngineOptions(options, *tiers).default_policy,
            (PositionalPolicy{1, 8, PositionalPolicy::kUnlimited}));
  options.cache.warm_window = 1024;
  options.cache.sink_tokens = 128;
  EXPECT_EQ(DeriveEngineOptions(options, *tiers).default_policy, (PositionalPolicy{2, 8, 16}));
}

TEST(DeriveOptionsTest, AModelIsNamedAfterItsFile) {
  EXPECT_EQ(ModelNameOf({.path = "/a/b/Model-Q4.gguf"}), "Model-Q4");
  EXPECT_EQ(ModelNameOf({.path = "/a/b.gguf", .name = "x"}), "x");
}

TEST(DeriveOptionsTest, ThisMachineHasMemoryAndDisk) {
  const MachineFacts facts = ReadMachine("/tmp/cold");
  EXPECT_GT(facts.memory_available, 0u);
  EXPECT_GT(facts.disk_available, 0u);
  EXPECT_EQ(ReadMachine("").disk_available, 0u);
}

}  // namespace
}  // namespace strata
