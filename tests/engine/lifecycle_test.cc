// How requests wait, are admitted, and end otherwise than by finishing.

#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/core_harness.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Turn = EngineCore::Turn;

std::vector<int32_t> Prompt(int32_t tokens, int32_t salt = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t i = 0; i < tokens; ++i) {
    prompt[static_cast<size_t>(i)] = 2 + (i * 11 + salt * 5) % 62;
  }
  return prompt;
}

Request Plain(int32_t prompt, int32_t max_tokens, int32_t salt = 0) {
  return CoreHarness::Plain(Prompt(prompt, salt), max_tokens);
}

std::vector<int32_t> Expected(int32_t prompt, int32_t max_tokens, int32_t salt = 0) {
  return FakeModel::Continue(Prompt(prompt, salt), max_tokens);
}

CoreHarness::Options OneAtATime() {
  CoreHarness::Options options;
  options.engine.max_sequences = 1;
  return options;
}

// ---- Cancelling (E2): blocks are free when the next turn has run, or sooner.

TEST(CancelTest, InTheQueue) {
  CoreHarness harness(OneAtATime());
  const auto running = harness.Submit(Plain(10, 50));
  const auto waiting = harness.Submit(Plain(10, 50, 1));
  harness.RunTurns(3);
  EXPECT_EQ(harness.core.waiting(), 1u);
  harness.core.Cancel(waiting.ticket);
  harness.RunTurn();
  EXPECT_EQ(waiting.sink->error.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(waiting.sink->started.has_value());
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_EQ(running.sink->tokens, Expected(10, 50));
  EXPECT_EQ(harness.snapshot->cancelled, 1u);
  EXPECT_EQ(harness.gauges.waiting, 0);
}

TEST(CancelTest, InPrefill) {
  CoreHarness harness;
  const auto request = harness.Submit(Plain(600, 50));
  harness.RunTurns(2);
  EXPECT_EQ(request.sink->prefill_done, 256);
  harness.core.Cancel(request.ticket);
  EXPECT_TRUE(harness.CacheIsEmpty());
  EXPECT_EQ(harness.RunTurn(), Turn::kIdle);
  EXPECT_EQ(request.sink->error.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(harness.snapshot->prompt_tokens, 256u);
}

TEST(CancelTest, InDecode) {
  CoreHarness harness;
  const auto request = harness.Submit(Plain(20, 50));
  harness.RunTurns(10);
  EXPECT_EQ(request.sink->tokens.size(), 10u);
  harness.core.Cancel(request.ticket);
  EXPECT_TRUE(harness.CacheIsEmpty());
  EXPECT_EQ(harness.RunTurn(), Turn::kIdle);
  EXPECT_EQ(request.sink->error.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(harness.gauges.in_flight, 0);
}

TEST(CancelTest, UnknownAndFinishedTicketsAreIgnored) {
  CoreHarness harness;
  const auto request = harness.Submit(Plain(20, 5));
  ASSERT_TRUE(harness.RunUntilIdle());
  harness.core.Cancel(request.ticket);
  harness.core.Cancel(999);
  EXPECT_EQ(harness.RunTurn(), Turn::kIdle);
  EXPECT_TRUE(request.sink->finished.has_value());
  EXPECT_EQ(harness.snapshot->cancelled, 0u);
}

// ---- Deadlines, in the same three places.

TEST(DeadlineTest, InTheQueueInPrefillAndInDecode) {
  for (const int turns : {0, 2, 8}) {
    SCOPED_TRACE(turns);
    CoreHarness harness(OneAtATime());
    CoreHarness::Running first{};
    if (turns == 0) first = harness.Submit(Plain(10, 50, 1));
    Request request = Plain(600, 50);
    request.deadline = harness.clock.Now() + std::chrono::seconds(1);
    const auto late = harness.Submit(request);
    harness.RunTurns(turns == 0 ? 2 : turns);
    harness.clock.Advance(std::chrono::milliseconds(999));
    harness.RunTurn();
    EXPECT_FALSE(late.sink->ended());
    harness.clock.Advance(std::chrono::milliseconds(1));
    harness.RunTurn();
    EXPECT_EQ(late.sink->error.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(harness.snapshot->deadline_exceeded, 1u);
    ASSERT_TRUE(harness.RunUntilIdle());
    EXPECT_TRUE(harness.CacheIsEmpty());
  }
}

TEST(DeadlineTest, QueueDeadlineBindsOnlyWhileWaiting) {
  CoreHarness harness(OneAtATime());
  Request request = Plain(10, 50);
  request.queue_deadline = harness.clock.Now() + std::chrono::seconds(1);
  const auto running = harness.Submit(request);
  harness.RunTurn();
  const auto waiting = harness.Submit(request);
  harness.clock.Advance(std::chrono::seconds(1));
  harness.RunTurn();
  EXPECT_EQ(waiting.sink->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(waiting.sink->error.message()), StartsWith("QUEUE_TIMEOUT"));
  EXPECT_EQ(harness.snapshot->rejected_queue_timeout, 1u);
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_TRUE(running.sink->finished.has_value());
}

TEST(DeadlineTest, TimeLimitFinishesWithWhatThereIs) {
  CoreHarness harness;
  harness.model.before_forward = [&](const ForwardBatch&) {
    harness.clock.Advance(std::chrono::milliseconds(10));
    return absl::OkStatus();
  };
  Request request = Plain(20, 500);
  request.stop.time_limit = std::chrono::milliseconds(100);
  request.stream_interval = 7;  // 10 tokens: one delta of 7, and 3 that are still owed
  harness.clock.Advance(std::chrono::seconds(5));
  const auto sink = harness.Run(request);
  ASSERT_TRUE(sink->finished.has_value());
  EXPECT_EQ(sink->finished->reason, FinishReason::kTimeLimit);
  EXPECT_EQ(sink->tokens, Expected(20, 10));
  EXPECT_EQ(sink->finished->completion_tokens, 10);
}

// ---- Admission.

TEST(AdmissionTest, WhatDoesNotFitWaitsAndThenRuns) {
  CoreHarness::Options options;
  options.cache.capacity_blocks = 4;
  options.cache.release_polls = 3;  // the mover lets go of memory late
  CoreHarness harness(options);
  const auto first = harness.Submit(Plain(100, 50));     // 3 blocks
  const auto second = harness.Submit(Plain(60, 50, 1));  // 2 blocks
  harness.RunTurns(5);
  EXPECT_TRUE(first.sink->started.has_value());
  EXPECT_FALSE(second.sink->started.has_value());
  EXPECT_EQ(harness.snapshot->waiting, 1u);
  bool waited_for_memory = false;
  for (int i = 0; i < 1000; ++i) {
    const Turn turn = harness.RunTurn();
    waited_for_memory |= turn == Turn::kWaiting;
    if (turn == Turn::kIdle) break;
  }
  EXPECT_TRUE(waited_for_memory);
  EXPECT_EQ(first.sink->tokens, Expected(100, 50));
  EXPECT_EQ(second.sink->tokens, Expected(60, 50, 1));
  harness.RunTurns(4);
  EXPECT_TRUE(harness.CacheIsEmpty());
  // The snapshot follows although no request asks for it.
  EXPECT_EQ(harness.snapshot->cache.tiers[0].used_bytes, 0u);
  EXPECT_TRUE(harness.core.CacheAtRest());
}

TEST(AdmissionTest, WhatCanNeverFitIsRefusedAtOnceWithFigures) {
  CoreHarness::Options options = OneAtATime();
  options.cache.capacity_blocks = 4;
  CoreHarness harness(options);
  const auto running = harness.Submit(Plain(100, 50));
  const auto waiting = harness.Submit(Plain(100, 50, 1));
  harness.RunTurn();
  const auto never = harness.Submit(Plain(300, 50));
  harness.RunTurn();
  EXPECT_EQ(never.sink->error.code(), absl::StatusCode::kResourceExhausted);
  // 349 tokens are 6 blocks of 2 layers * 2 * 16 values * 64 tokens * 2 bytes.
  EXPECT_THAT(std::string(never.sink->error.message()), StartsWith("KV_CAPACITY: 349 tokens"));
  EXPECT_THAT(never.sink->error.message(), HasSubstr("hot 49152 of 32768"));
  EXPECT_EQ(harness.snapshot->rejected_capacity, 1u);
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_TRUE(running.sink->finished.has_value());
  EXPECT_TRUE(waiting.sink->finished.has_value());
}

TEST(AdmissionTest, ABigRequestIsNotOvertakenForEver) {
  CoreHarness::Options options;
  options.cache.capacity_blocks = 8;
  CoreHarness harness(options);
  int32_t salt = 0;
  const auto submit_small = [&] { return harness.Submit(Plain(10, 40, ++salt)); };
  for (int i = 0; i < 4; ++i) submit_small();
  harness.RunTurns(2);
  const auto big = harness.Submit(Plain(400, 100));  // all 8 blocks
  int turns = 0;
  // A small request arrives each turn, far more than can run at once.
  for (; !big.sink->started.has_value() && turns < 5000; ++turns) {
    if (harness.core.waiting() < 20) submit_small();
    harness.RunTurn();
  }
  // 16 overtakers and those running, each 40 steps long, all at once or one after another.
  EXPECT_LE(turns, (16 + 8) * 40);
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_EQ(big.sink->tokens, Expected(400, 100));
  EXPECT_TRUE(harness.CacheIsEmpty());
}

// ---- Faults below.

TEST(FaultTest, ADamagedSequenceIsComputedAgainAndGivesTheSameTokens) {
  CoreHarness harness;
  std::map<SequenceHandle, int> steps;
  // The second sequence breaks in its prefill, in its decoding, and while it is computed again.
  harness.cache.damages = [&](const StepSlice& slice) {
    if (slice.sequence != 2) return false;
    const int step = ++steps[slice.sequence];
    return step == 2 || step == 40 || step == 42;
  };
  const auto first = harness.Submit(Plain(150, 100));
  const auto second = harness.Submit(Plain(300, 100, 1));
  const auto third = harness.Submit(Plain(20, 100, 2));
  for (uint64_t prompt_tokens = 0; harness.RunTurn() != Turn::kIdle;) {
    EXPECT_GE(harness.snapshot->prompt_tokens, prompt_tokens);  // a counter
    prompt_tokens = harness.snapshot->prompt_tokens;
  }
  EXPECT_EQ(first.sink->tokens, Expected(150, 100));
  EXPECT_EQ(third.sink->tokens, Expected(20, 100, 2));
  ASSERT_TRUE(second.sink->finished.has_value()) << second.sink->error;
  EXPECT_EQ(second.sink->tokens, Expected(300, 100, 1));
  EXPECT_EQ(second.sink->text.size(), FakeTokenizer().Decode(second.sink->tokens, false).size());
  EXPECT_EQ(first.sink->finished->recomputed_tokens, 0);
  // Lost: one piece of 128; then the prompt and what 40 - 2 - 3 decodes fed back; then a piece.
  EXPECT_EQ(second.sink->finished->recomputed_tokens, 128 + (300 + 34) + 128);
  EXPECT_EQ(harness.snapshot->recomputed_tokens, 128u + 334 + 128);
  // The prompt is counted once.
  EXPECT_EQ(harness.snapshot->prompt_tokens, 150u + 300 + 20);
  EXPECT_TRUE(harness.CacheIsEmpty());
}

TEST(FaultTest, DamageWithoutEndIsGivenUp) {
  CoreHarness harness;
  harness.cache.damages = [&](const StepSlice& slice) { return slice.sequence == 1; };
  const auto bad = harness.Submit(Plain(20, 10));
  const auto good = harness.Submit(Plain(20, 10, 1));
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_EQ(bad.sink->error.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(bad.sink->error.message(), HasSubstr("4 times"));
  EXPECT_EQ(harness.snapshot->failed, 1u);
  EXPECT_EQ(good.sink->tokens, Expected(20, 10, 1));
}

TEST(FaultTest, OnlyTheSequenceThatCannotGoOnEnds) {
  CoreHarness harness;
  harness.cache.refuses = [&](const StepSlice& slice) {
    return slice.sequence == 2 && slice.first == 25
               ? absl::ResourceExhaustedError("sequence 2: warm tier full, disk failing")
               : absl::OkStatus();
  };
  const auto first = harness.Submit(Plain(20, 30));
  const auto second = harness.Submit(Plain(20, 30, 1));
  const auto third = harness.Submit(Plain(20, 30, 2));
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_EQ(second.sink->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(second.sink->error.message(), HasSubstr("warm tier full"));
  EXPECT_EQ(second.sink->tokens.size(), 6u);
  EXPECT_EQ(first.sink->tokens, Expected(20, 30));
  EXPECT_EQ(third.sink->tokens, Expected(20, 30, 2));
  EXPECT_EQ(harness.snapshot->failed, 1u);
  EXPECT_TRUE(harness.CacheIsEmpty());
}

TEST(FaultTest, AModelErrorEndsTheRequestsOfItsStepOnly) {
  CoreHarness harness(OneAtATime());
  int forwards = 0;
  harness.model.before_forward = [&](const ForwardBatch&) {
    return ++forwards == 5 ? absl::InternalError("device lost") : absl::OkStatus();
  };
  const auto failing = harness.Submit(Plain(20, 30));
  const auto next = harness.Submit(Plain(20, 30, 1));
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_EQ(failing.sink->error.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(next.sink->tokens, Expected(20, 30, 1));
  EXPECT_EQ(harness.snapshot->failed, 1u);
  EXPECT_TRUE(harness.CacheIsEmpty());
}

// ---- The snapshot that counts an ending is out before the ending is delivered (E3).
TEST(SnapshotTest, WhoeverGotTheTerminalEventFindsItCounted) {
  CoreHarness harness;
  class Reader : public RecordingSink {
   public:
    explicit Reader(CoreHarness* h) : harness(h) {}
    void OnFinished(FinishedEvent event) override {
      seen = harness->snapshot->finished[static_cast<size_t>(event.reason)];
      running = harness->snapshot->running;
      RecordingSink::OnFinished(std::move(event));
    }
    CoreHarness* harness;
    uint64_t seen = 0;
    uint64_t running = 99;
  };
  const auto sink = std::make_shared<Reader>(&harness);
  harness.gauges.in_flight = harness.gauges.waiting = 1;
  harness.core.Submit({1, Plain(20, 3), sink, absl::OkStatus()});
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_EQ(sink->seen, 1u);
  EXPECT_EQ(sink->running, 0u);
}

// ---- Everything at once: RecordingSink CHECKs the order and number of events (E1).
TEST(RandomLifeTest, EveryRequestEndsOnceAndTheCacheReturnsToItsBaseline) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % n); };
    CoreHarness::Options options;
    options.engine.max_sequences = 1 + below(8);
    options.cache.capacity_blocks = 10 + below(30);
    options.cache.release_polls = below(4);
    CoreHarness harness(options);
    std::mt19937 faults(seed + 1000);
    harness.cache.damages = [&](const StepSlice&) { return faults() % 200 == 0; };
    harness.cache.refuses = [&](const StepSlice&) {
      return faults() % 2000 == 0 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
    };
    harness.model.before_forward = [&](const ForwardBatch&) {
      harness.clock.Advance(std::chrono::milliseconds(1));
      return absl::OkStatus();
    };
    struct Case {
      CoreHarness::Running running;
      int32_t prompt, max_tokens, salt;
    };
    std::vector<Case> cases;
    for (int32_t turn = 0; turn < 600; ++turn) {
      if (cases.size() < 120 && below(3) == 0) {
        Case item{{}, 1 + below(700), 1 + below(90), below(50)};
        Request request = Plain(item.prompt, item.max_tokens, item.salt);
        const auto in = [&](int32_t ms) {
          return harness.clock.Now() + std::chrono::milliseconds(ms);
        };
        if (below(6) == 0) request.deadline = in(below(200));
        if (below(6) == 0) request.queue_deadline = in(below(100));
        if (below(6) == 0) request.stop.time_limit = std::chrono::milliseconds(1 + below(100));
        item.running = harness.Submit(std::move(request));
        cases.push_back(std::move(item));
      }
      if (!cases.empty() && below(8) == 0) {
        harness.core.Cancel(
            cases[static_cast<size_t>(below(static_cast<int32_t>(cases.size())))].running.ticket);
      }
      harness.RunTurn();
    }
    ASSERT_TRUE(harness.RunUntilIdle());
    harness.RunTurns(5);
    EXPECT_TRUE(harness.CacheIsEmpty());
    uint64_t finished = 0, errors = 0;
    for (const Case& item : cases) {
      const RecordingSink& sink = *item.running.sink;
      ASSERT_TRUE(sink.ended());
      ASSERT_NE(sink.finished.has_value(), !sink.error.ok());
      (sink.finished.has_value() ? finished : errors) += 1;
      // Whatever was delivered is right, also of requests that ended early.
      EXPECT_EQ(sink.tokens,
                Expected(item.prompt, static_cast<int32_t>(sink.tokens.size()), item.salt));
      if (sink.finished.has_value() && sink.finished->reason == FinishReason::kLength) {
        EXPECT_EQ(static_cast<int32_t>(sink.tokens.size()), item.max_tokens);
      }
    }
    EXPECT_GT(finished, 10u);
    EXPECT_GT(errors, 10u);
    const EngineSnapshot& totals = *harness.snapshot;
    uint64_t counted = 0;
    for (const uint64_t count : totals.finished) counted += count;
    EXPECT_EQ(counted, finished);
    EXPECT_EQ(totals.cancelled + totals.deadline_exceeded + totals.failed +
                  totals.rejected_queue_timeout + totals.rejected_capacity +
                  totals.rejected_invalid,
              errors);
    EXPECT_EQ(harness.gauges.in_flight, 0);
    EXPECT_EQ(harness.gauges.waiting, 0);
  }
}

}  // namespace
}  // namespace strata
