#include "kernels/cpu/attention_plan.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/attention_test_util.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr AttentionShape kShape{4, 2, 32};
constexpr PageCosts kCosts{8, 3, 2};
constexpr BlockKinds kF16{};
constexpr BlockKinds kI4{KvKind::kI4, KvKind::kI4, KvKind::kI4, KvKind::kI4};
constexpr BlockKinds kI2{KvKind::kI2, KvKind::kI2, KvKind::kI2, KvKind::kI2};

// The blocks of each split of the first unit.
std::vector<std::vector<int32_t>> SplitsOf(const std::vector<PageRun>& runs, int32_t position,
                                           int threads) {
  const AttentionSequence sequence{0, 1, position, runs};
  AttentionPlan plan(kCosts);
  plan.Build(kShape, {&sequence, 1}, threads);
  const AttentionUnit& unit = plan.units().front();
  std::vector<std::vector<int32_t>> splits;
  for (int32_t s = 0; s < unit.split_count; ++s) {
    HeadPage pages[kSplitPagesMax];
    const int32_t count = plan.HeadPages(unit, s, pages);
    splits.emplace_back();
    for (int32_t i = 0; i < count; ++i) splits.back().push_back(pages[i].position / kBlockTokens);
  }
  return splits;
}

// Where splits are cut decides the order of additions: it must follow from positions alone.
TEST(AttentionPlanTest, SplitsAreCutAtAbsoluteBlocks) {
  const TestSequence sequence(2, 32, std::vector<BlockKinds>(20, kF16), 64, 1);
  EXPECT_THAT(SplitsOf(sequence.Runs(3, 20), 20 * 64 - 1, 2),
              ElementsAre(ElementsAre(3, 4, 5, 6, 7), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15),
                          ElementsAre(16, 17, 18, 19)));
}

TEST(AttentionPlanTest, HowRunsAreListedMovesNoCut) {
  std::vector<BlockKinds> kinds(20, kI4);
  kinds[0] = kinds[19] = kF16;
  const TestSequence sequence(2, 32, kinds, 64, 1);
  const auto whole = SplitsOf(sequence.Runs(), 20 * 64 - 1, 2);
  std::vector<PageRun> pages;
  for (int32_t block = 0; block < 20; ++block) pages.push_back(sequence.Runs(block, block + 1)[0]);
  EXPECT_THAT(SplitsOf(pages, 20 * 64 - 1, 2), ElementsAreArray(whole));
  EXPECT_THAT(SplitsOf(sequence.Runs(), 20 * 64 - 1, 7), ElementsAreArray(whole));
}

TEST(AttentionPlanTest, LaterPagesMoveNoEarlierCut) {
  const TestSequence sequence(2, 32, std::vector<BlockKinds>(20, kF16), 64, 1);
  // What the query at position 700 sees, with and without the pages behind it.
  const auto with = SplitsOf(sequence.Runs(), 700, 2);
  const auto without = SplitsOf(sequence.Runs(0, 11), 700, 2);
  EXPECT_THAT(with, ElementsAreArray(without));
  EXPECT_THAT(without.back(), ElementsAre(8, 9, 10));
}

// F16 pages take several times as long as others: a cut by the number of pages would let one thread
// wait for the other.
TEST(AttentionPlanTest, ItemsCostAboutTheSame) {
  std::vector<BlockKinds> kinds(120, kI2);
  for (int32_t block = 90; block < 106; ++block) kinds[block] = kI4;
  for (int32_t block = 106; block < 120; ++block) kinds[block] = kF16;
  const TestSequence sequence(2, 32, kinds, 64, 1);
  const std::vector<PageRun> runs = sequence.Runs();
  const AttentionSequence whole{0, 1, 120 * 64 - 1, runs};
  AttentionPlan plan(kCosts);
  plan.Build(kShape, {&whole, 1}, 2);
  ASSERT_GE(plan.items().size(), 3u);
  int64_t total = 0;
  for (const AttentionItem& item : plan.items()) total += item.cost;
  EXPECT_EQ(total, kShape.kv_heads * 2 * (90 * 2 + 16 * 3 + 14 * 8));
  // Taken in turn by two threads, each item by the one that is free first.
  int64_t busy[2] = {0, 0};
  for (const AttentionItem& item : plan.items()) *std::min_element(busy, busy + 2) += item.cost;
  EXPECT_LE(std::max(busy[0], busy[1]), total * 0.55);
}

// Every split of every unit lies in exactly one item.
TEST(AttentionPlanTest, ItemsCoverEverySplitOnce) {
  const TestSequence longer(2, 32, std::vector<BlockKinds>(70, kF16), 64, 1);
  const TestSequence shorter(2, 32, std::vector<BlockKinds>(3, kF16), 64, 2);
  const std::vector<PageRun> long_runs = longer.Runs();
  const std::vector<PageRun> short_runs = shorter.Runs();
  for (const int threads : {1, 2, 5, 16}) {
    for (const int32_t rows : {1, 30, 190}) {
      const std::vector<AttentionSequence> sequences = {{0, rows, 70 * 64 - rows, long_runs},
                                                        {rows, 1, 3 * 64 - 1, short_runs}};
      AttentionPlan plan(kCosts);
      plan.Build(kShape, sequences, threads);
      std::vector<std::vector<int>> seen;
      for (const AttentionUnit& unit : plan.units()) seen.emplace_back(unit.split_count, 0);
      for (const AttentionItem& item : plan.items()) {
        for (int32_t u = item.first_unit; u < item.first_unit + item.unit_count; ++u) {
          for (int32_t s = item.first_split; s < item.end_split; ++s) ++seen[u][s];
        }
      }
      for (const std::vector<int>& splits : seen) EXPECT_THAT(splits, ::testing::Each(1));
    }
  }
}

}  // namespace
}  // namespace strata
