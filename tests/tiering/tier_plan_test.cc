#include "tiering/tier_plan.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tiering/cache_driver.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

TEST(PositionalPolicyTest, TierIsAFunctionOfPositionsAlone) {
  const PositionalPolicy policy{.sink_blocks = 1, .hot_blocks = 4, .warm_blocks = 8};
  EXPECT_EQ(policy.TierOf(0, 1000), Tier::kHot);
  EXPECT_EQ(policy.TierOf(21, 20), Tier::kHot);  // of the piece itself
  EXPECT_EQ(policy.TierOf(16, 20), Tier::kHot);
  EXPECT_EQ(policy.TierOf(15, 20), Tier::kWarm);
  EXPECT_EQ(policy.TierOf(8, 20), Tier::kWarm);
  EXPECT_EQ(policy.TierOf(7, 20), Tier::kCold);
  const PositionalPolicy exact;
  EXPECT_EQ(exact.TierOf(1, 1 << 24), Tier::kHot);
}

// Walks a sequence piece by piece and counts what must be where.
SlotNeed Simulated(const PositionalPolicy& policy, int32_t tokens, int32_t piece_blocks) {
  SlotNeed most;
  const int32_t blocks = BlocksForTokens(tokens);
  for (int32_t piece = 0; piece < blocks; piece += piece_blocks) {
    int32_t count[kTierCount] = {0, 0, 0};
    const int32_t end = std::min(blocks, piece + piece_blocks);
    for (int32_t b = 0; b < end; ++b) ++count[IndexOf(policy.TierOf(b, piece))];
    // Encoded ahead of the next piece, if there is one.
    if (piece + piece_blocks < blocks) {
      for (int32_t b = 0; b < end; ++b) {
        const bool leaves = policy.TierOf(b, piece) == Tier::kHot &&
                            policy.TierOf(b, piece + piece_blocks) != Tier::kHot;
        count[1] += leaves ? 1 : 0;
      }
    }
    // Being written: cold in this piece but not in the one before.
    for (int32_t b = 0; b < end && piece > 0; ++b) {
      const bool leaves = policy.TierOf(b, piece) == Tier::kCold &&
                          policy.TierOf(b, piece - piece_blocks) != Tier::kCold;
      count[1] += leaves ? 1 : 0;
    }
    for (int i = 0; i < kTierCount; ++i) most.blocks[i] = std::max(most.blocks[i], count[i]);
  }
  return most;
}

TEST(WorstCaseTest, CoversEveryPieceAndIsTight) {
  for (int32_t piece_blocks : {1, 2, 4}) {
    for (int32_t hot : {0, 1, 4, 7, PositionalPolicy::kUnlimited}) {
      for (int32_t warm : {0, 3, 8, PositionalPolicy::kUnlimited}) {
        for (int32_t tokens : {1, 64, 65, 600, 1500, 3000}) {
          const PositionalPolicy policy{
              .sink_blocks = 1 + tokens % 2, .hot_blocks = hot, .warm_blocks = warm};
          const SlotNeed need = WorstCase(policy, tokens, piece_blocks);
          const SlotNeed walked = Simulated(policy, tokens, piece_blocks);
          for (int i = 0; i < kTierCount; ++i) EXPECT_GE(need.blocks[i], walked.blocks[i]);
          EXPECT_EQ(need.blocks[2], walked.blocks[2]);
          EXPECT_LE(need.blocks[0], walked.blocks[0] + policy.sink_blocks);
          EXPECT_LE(need.blocks[1], walked.blocks[1] + 2 * piece_blocks);
        }
      }
    }
  }
}

TEST(WorstCaseTest, ByHand) {
  const PositionalPolicy policy{.sink_blocks = 1, .hot_blocks = 4, .warm_blocks = 8};
  // 40 blocks, the last piece of four begins at 36: 31 leave hot, 23 leave warm.
  const SlotNeed need = WorstCase(policy, 40 * 64, 4);
  EXPECT_EQ(need.blocks[0], 9);
  EXPECT_EQ(need.blocks[1], 16);
  EXPECT_EQ(need.blocks[2], 23);
  EXPECT_EQ(WorstCase(PositionalPolicy{}, 40 * 64, 4).blocks[0], 40);
  EXPECT_EQ(WorstCase(PositionalPolicy{}, 40 * 64, 4).blocks[1], 0);
}

TEST(TierPlanTest, SlotsStayWithinTheirBudgets) {
  const ScratchPath file;
  const TierOptions options = SmallOptions({.hot_blocks = 20,
                                            .warm_blocks = 30,
                                            .cold_blocks = 40,
                                            .staging_units = 300,
                                            .cold_path = file.path()});
  const TierPlan plan = TierPlan::Make(options);
  EXPECT_GE(plan.slots[0], 20);
  EXPECT_LE(plan.slots[0] * plan.hot.bytes(), options.hot_bytes);
  EXPECT_GE(plan.slots[1], 30);
  EXPECT_LE(plan.slots[1] * plan.warm.bytes(), options.warm_bytes);
  EXPECT_EQ(plan.slots[2], 40);
  EXPECT_LE(cold_format::FileBytes(plan.slots[2], plan.record.bytes()), options.cold_bytes);
  EXPECT_GE(plan.staging_units, 300);
  EXPECT_LE(plan.staging_units * plan.record.largest_group_bytes() +
                plan.write_buffers * plan.record.bytes(),
            options.staging_bytes);
}

// Formats of the design: bits of a value with its parameters, at H = 8, D = 128.
TEST(TierPlanTest, BlockBytesAreThoseOfTheFormats) {
  TierOptions options;
  options.geometry = {4, 8, 128};
  options.formats = TierFormats::Uniform(4, {KvKind::kI4, KvKind::kI4}, {KvKind::kI2, KvKind::kI2});
  options.formats.KeepK(2, {});
  const auto bytes = TieredCache::BlockBytes(options);
  EXPECT_EQ(bytes[0], 4u * 262144);
  EXPECT_EQ(bytes[1], 4u * 73728);
  EXPECT_EQ(bytes[2], 2u * 57344 + 2u * 40960);
}

TEST(DefaultPolicyTest, EverythingHotWhereItFits) {
  TierOptions options = SmallOptions({.hot_blocks = 8 * 64});
  EXPECT_EQ(TieredCache::DefaultPolicy(options), PositionalPolicy{});
  options = SmallOptions({.hot_blocks = 8 * 63});  // too little, but there is nowhere else
  EXPECT_EQ(TieredCache::DefaultPolicy(options), PositionalPolicy{});
}

TEST(DefaultPolicyTest, WindowsAreWhatTheBudgetsBuyForEverySequence) {
  const ScratchPath file;
  TierOptions options = SmallOptions({.hot_blocks = 8 * 13,
                                      .warm_blocks = 8 * 14,
                                      .cold_blocks = 512,
                                      .staging_units = 2000,
                                      .cold_path = file.path()});
  const PositionalPolicy policy = TieredCache::DefaultPolicy(options);
  EXPECT_EQ(policy.sink_blocks, 1);
  EXPECT_EQ(policy.hot_blocks, 10);   // 13 less sink and piece
  EXPECT_EQ(policy.warm_blocks, 10);  // 14 less two pieces
  const SlotNeed need = WorstCase(policy, options.max_context, 2);
  const TierPlan plan = TierPlan::Make(options);
  for (int i = 0; i < kTierCount; ++i) {
    EXPECT_LE(need.blocks[i] * options.max_sequences, plan.slots[i]);
  }
  options.cold_bytes = 0;
  EXPECT_EQ(TieredCache::DefaultPolicy(options).warm_blocks, PositionalPolicy::kUnlimited);
  // Never less than a piece, so that what leaves is sealed: fewer sequences then run at once.
  options.hot_bytes /= 8;
  EXPECT_EQ(TieredCache::DefaultPolicy(options).hot_blocks, 2);
}

absl::Status Minimum(const TierOptions& options) {
  return TierPlan::Make(options).CheckMinimum(options);
}

TEST(TierPlanTest, BudgetsBelowOneSequenceAreRefused) {
  const ScratchPath file;
  EXPECT_TRUE(Minimum(SmallOptions({.hot_blocks = 5})).ok());
  EXPECT_THAT(Minimum(SmallOptions({.hot_blocks = 4})).message(),
              HasSubstr("one sequence needs 5"));
  SmallBudget budget{.hot_blocks = 8 * 13,
                     .warm_blocks = 8 * 14,
                     .cold_blocks = 512,
                     .staging_units = 200,
                     .cold_path = file.path()};
  EXPECT_TRUE(Minimum(SmallOptions(budget)).ok()) << Minimum(SmallOptions(budget));
  budget.warm_blocks = 3;
  EXPECT_THAT(Minimum(SmallOptions(budget)).message(), HasSubstr("warm_bytes"));
  budget.warm_blocks = 8 * 14;
  budget.staging_units = 20;
  EXPECT_THAT(Minimum(SmallOptions(budget)).message(), HasSubstr("staging_bytes"));
}

TEST(TierOptionsTest, NamesWhatIsWrong) {
  const TierOptions good = SmallOptions({});
  ASSERT_TRUE(good.Validate().ok());
  const auto message = [&](auto change) {
    TierOptions options = good;
    change(options);
    return std::string(options.Validate().message());
  };
  EXPECT_THAT(message([](TierOptions& o) { o.geometry.head_dim = 20; }), HasSubstr("head dim 20"));
  EXPECT_THAT(message([](TierOptions& o) { o.geometry.layers = 600; }), HasSubstr("600 layers"));
  EXPECT_THAT(message([](TierOptions& o) { o.piece_tokens = 100; }), HasSubstr("piece_tokens"));
  EXPECT_THAT(message([](TierOptions& o) { o.hot_bytes = 0; }), HasSubstr("hot_bytes"));
  EXPECT_THAT(message([](TierOptions& o) { o.max_sequences = 0; }), HasSubstr("max_sequences"));
  EXPECT_THAT(message([](TierOptions& o) { o.formats.cold.pop_back(); }), HasSubstr("11 cold"));
  EXPECT_THAT(message([](TierOptions& o) {
                o.formats.warm[3].k = KvKind::kI2;
                o.formats.cold[3].k = KvKind::kI4;
              }),
              HasSubstr("layer 3"));
  EXPECT_THAT(message([](TierOptions& o) { o.formats.warm[2].v = static_cast<KvKind>(77); }),
              HasSubstr("unknown page kind 77"));
  EXPECT_THAT(message([](TierOptions& o) { o.io_engine = "posix"; }), HasSubstr("posix"));
  EXPECT_THAT(message([](TierOptions& o) { o.io_depth_max = 0; }), HasSubstr("io_depth_max"));
  EXPECT_THAT(message([](TierOptions& o) { o.cold_bytes = 1; }), HasSubstr("cold_path"));
  EXPECT_THAT(message([](TierOptions& o) {
                o.cold_bytes = 1;
                o.cold_path = "x";
              }),
              HasSubstr("staging_bytes"));
}

}  // namespace
}  // namespace strata
