#include "server/engine/scheduler.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

SchedulerLimits SmallLimits() {
  SchedulerLimits limits;
  limits.sequences_max = 4;
  limits.piece_tokens = 64;
  limits.batch_tokens_max = 80;
  limits.overtakes_max = 3;
  limits.admission_scan_max = 6;
  return limits;
}

TEST(SchedulerLimitsTest, RefusesABatchThatCannotHoldAPieceBesideTheDecodes) {
  SchedulerLimits limits = SmallLimits();
  limits.batch_tokens_max = 67;  // 64 + 3
  EXPECT_TRUE(limits.Validate().ok());
  limits.batch_tokens_max = 66;
  const absl::Status status = limits.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("max_batch_tokens is 66, must be at least 67"));
  limits = SmallLimits();
  limits.sequences_max = 0;
  EXPECT_THAT(limits.Validate().message(), HasSubstr("max_sequences is 0"));
}

TEST(PlanStepTest, PutsDecodesFirstAndCutsPrefillsAtPiecesOnly) {
  const std::vector<RunningView> running = {
      {.computed = 64, .known = 300, .decoding = false, .last_step = 5},  // whole piece
      {.computed = 70, .known = 71, .decoding = true, .last_step = 9},
      {.computed = 0, .known = 10, .decoding = false, .last_step = 6},  // the prompt's last
  };
  StepPlan plan;
  PlanStep(running, SmallLimits(), &plan);
  const std::vector<PlannedSlice> expected = {{1, 70, 1}, {0, 64, 64}, {2, 0, 10}};
  EXPECT_EQ(plan.slices, expected);
  EXPECT_EQ(plan.decodes, 1u);
  EXPECT_EQ(plan.rows, 75);
}

TEST(PlanStepTest, ASliceThatStartsInsideAPieceEndsWithIt) {
  StepPlan plan;
  PlanStep({{.computed = 70, .known = 300, .decoding = false, .last_step = 0}}, SmallLimits(),
           &plan);
  EXPECT_EQ(plan.slices, (std::vector<PlannedSlice>{{0, 70, 58}}));
}

TEST(PlanStepTest, APieceThatDoesNotFitIsLeftOutWholeAndASmallerOneMayTakeTheRoom) {
  const std::vector<RunningView> running = {
      {.computed = 0, .known = 64, .decoding = false, .last_step = 1},
      {.computed = 0, .known = 40, .decoding = false, .last_step = 2},
      {.computed = 0, .known = 16, .decoding = false, .last_step = 3},
  };
  StepPlan plan;
  PlanStep(running, SmallLimits(), &plan);
  const std::vector<PlannedSlice> expected = {{0, 0, 64}, {2, 0, 16}};
  EXPECT_EQ(plan.slices, expected);
  EXPECT_EQ(plan.rows, 80);
}

TEST(PlanStepTest, NothingRunningGivesAnEmptyPlanAndForgetsTheLastOne) {
  StepPlan plan;
  PlanStep({{.computed = 0, .known = 5, .decoding = false, .last_step = 0}}, SmallLimits(), &plan);
  PlanStep({}, SmallLimits(), &plan);
  EXPECT_THAT(plan.slices, IsEmpty());
  EXPECT_EQ(plan.rows, 0);
  EXPECT_EQ(plan.decodes, 0u);
}

// Random running lists, stepped until all prompts are in: S1 to S4 at every step.
TEST(PlanStepTest, KeepsItsPromisesOverRandomRuns) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    SchedulerLimits limits;
    limits.sequences_max = 1 + static_cast<int32_t>(random() % 8);
    limits.piece_tokens = 64 * (1 + static_cast<int32_t>(random() % 3));
    limits.batch_tokens_max =
        limits.piece_tokens + limits.sequences_max - 1 + static_cast<int32_t>(random() % 100);
    ASSERT_TRUE(limits.Validate().ok());

    std::vector<RunningView> running(static_cast<size_t>(limits.sequences_max));
    for (RunningView& view : running) view.known = 1 + static_cast<int32_t>(random() % 900);
    std::vector<int32_t> waited(running.size(), 0);
    for (uint64_t step = 1; step <= 200; ++step) {
      StepPlan plan, again;
      PlanStep(running, limits, &plan);
      PlanStep(running, limits, &again);
      ASSERT_EQ(plan.slices, again.slices);
      ASSERT_LE(plan.rows, limits.batch_tokens_max);  // S2
      int32_t rows = 0;
      std::map<size_t, PlannedSlice> planned;
      for (size_t i = 0; i < plan.slices.size(); ++i) {
        const PlannedSlice& slice = plan.slices[i];
        const RunningView& view = running[slice.index];
        ASSERT_TRUE(planned.emplace(slice.index, slice).second) << "planned twice";
        ASSERT_EQ(view.decoding, i < plan.decodes);
        ASSERT_EQ(slice.first, view.computed);
        ASSERT_GE(slice.tokens, 1);
        const int32_t end = slice.first + slice.tokens;
        ASSERT_EQ(slice.first / limits.piece_tokens, (end - 1) / limits.piece_tokens);  // S3
        ASSERT_TRUE(end == view.known || end % limits.piece_tokens == 0);
        rows += slice.tokens;
      }
      ASSERT_EQ(rows, plan.rows);
      for (size_t i = 0; i < running.size(); ++i) {
        if (running[i].decoding) {
          ASSERT_TRUE(planned.contains(i));  // S1
        }
        waited[i] = planned.contains(i) ? 0 : waited[i] + 1;
        ASSERT_LE(waited[i], limits.sequences_max - 1);  // S4
      }
      for (const auto& [index, slice] : planned) {
        RunningView& view = running[index];
        view.computed += slice.tokens;
        view.last_step = step;
        if (view.computed == view.known) {
          ++view.known;
          view.decoding = true;
        }
        // Now and then a damaged record sends a sequence back to the start.
        if (random() % 50 == 0) {
          view.computed = 0;
          view.decoding = false;
        }
      }
    }
  }
}

TEST(NextToAdmitTest, TakesTheFirstThatWasNotRefusedAndRespectsTheSequenceLimit) {
  std::vector<WaiterView> waiters(3);
  EXPECT_EQ(NextToAdmit(waiters, 0, SmallLimits()), 0u);
  waiters[0].refused = true;
  EXPECT_EQ(NextToAdmit(waiters, 3, SmallLimits()), 1u);
  EXPECT_EQ(NextToAdmit(waiters, 4, SmallLimits()), std::nullopt);
  EXPECT_EQ(NextToAdmit({}, 0, SmallLimits()), std::nullopt);
}

TEST(NextToAdmitTest, NobodyPassesAWaiterThatWasOvertakenOftenEnough) {
  std::vector<WaiterView> waiters(3);
  waiters[0] = {.overtaken = 2, .refused = true};
  EXPECT_EQ(NextToAdmit(waiters, 0, SmallLimits()), 1u);
  waiters[0].overtaken = 3;
  EXPECT_EQ(NextToAdmit(waiters, 0, SmallLimits()), std::nullopt);
  // It may itself be tried all the same.
  waiters[0].refused = false;
  EXPECT_EQ(NextToAdmit(waiters, 0, SmallLimits()), 0u);
}

TEST(NextToAdmitTest, LooksAtABoundedNumberOfWaiters) {
  std::vector<WaiterView> waiters(20, {.overtaken = 0, .refused = true});
  waiters[6].refused = false;  // admission_scan_max is 6
  EXPECT_EQ(NextToAdmit(waiters, 0, SmallLimits()), std::nullopt);
}

// A stream of small requests never ends; big ones need the whole budget at once. Without the
// overtaking limit a big one would wait for ever (W1).
TEST(NextToAdmitTest, BigWaitersAreAdmittedUnderAnEndlessStreamOfSmallOnes) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const SchedulerLimits limits = SmallLimits();
    struct Item {
      int32_t size;
      int32_t overtaken;
      uint64_t arrived;
    };
    constexpr int32_t kBudget = 10;
    std::vector<Item> waiting;
    std::vector<std::pair<int32_t, uint64_t>> running;  // size, end
    int32_t used = 0;
    int32_t big_admitted = 0;
    for (uint64_t turn = 0; turn < 2000; ++turn) {
      std::erase_if(running, [&](const auto& item) {
        if (item.second > turn) return false;
        used -= item.first;
        return true;
      });
      const int32_t size = random() % 20 == 0 ? kBudget : 1 + static_cast<int32_t>(random() % 3);
      if (waiting.size() < 30) waiting.push_back({size, 0, turn});
      std::vector<WaiterView> views;
      for (const Item& item : waiting) views.push_back({item.overtaken, false});
      while (const auto next = NextToAdmit(views, static_cast<int32_t>(running.size()), limits)) {
        const Item item = waiting[*next];
        if (used + item.size > kBudget) {
          views[*next].refused = true;
          continue;
        }
        used += item.size;
        running.emplace_back(item.size, turn + 1 + random() % 10);
        big_admitted += item.size == kBudget ? 1 : 0;
        // 30 waiters, each admitted after at most 3 overtakers and 10 turns of runtime.
        ASSERT_LE(turn - item.arrived, 30u * 4 * 10);
        for (size_t i = 0; i < *next; ++i) {
          ++waiting[i].overtaken;
          ++views[i].overtaken;
          ASSERT_LE(waiting[i].overtaken, limits.overtakes_max);
        }
        waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(*next));
        views.erase(views.begin() + static_cast<ptrdiff_t>(*next));
      }
    }
    EXPECT_GT(big_admitted, 20);
  }
}

}  // namespace
}  // namespace strata
