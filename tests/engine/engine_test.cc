// The engine with its thread: queue limit, threads, destruction. What a request gets is tested on
// the core, turn by turn.

#include "server/engine/engine.h"

#include <atomic>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/fake_cache.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/recording_sink.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

void Nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    options_.max_batch_tokens = 160;
    options_.default_policy = PositionalPolicy{};
    cache_options_.geometry = model_.config().Geometry();
  }
  void Start() {
    auto engine = Engine::Create(options_, &model_, std::make_unique<FakeCache>(cache_options_),
                                 Clock::Real());
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  static Request Plain(int32_t prompt, int32_t max_tokens) {
    Request request;
    request.prompt.assign(static_cast<size_t>(prompt), 5);
    request.stop.max_tokens = max_tokens;
    request.stop.ignore_eos = true;
    return request;
  }
  struct Submitted {
    uint64_t ticket;
    std::shared_ptr<RecordingSink> sink;
  };
  Submitted Submit(Request request) {
    auto sink = std::make_shared<RecordingSink>();
    const uint64_t ticket = engine_->Submit(std::move(request), sink);
    return {ticket, sink};
  }
  // The terminal event is delivered just before the count falls.
  void AwaitNoneInFlight() {
    while (engine_->InFlight() != 0) Nap();
  }

  EngineOptions options_;
  FakeCacheOptions cache_options_;
  FakeModel model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, RunsARequest) {
  Start();
  const auto request = Submit(Plain(200, 20));
  request.sink->AwaitEnd();
  EXPECT_EQ(request.sink->tokens, FakeModel::Continue(std::vector<int32_t>(200, 5), 20));
  AwaitNoneInFlight();
  EXPECT_EQ(engine_->options().max_context, FakeModel::kContext);
  EXPECT_EQ(engine_->Snapshot()->generation_tokens, 20u);
  EXPECT_FALSE(engine_->Snapshot()->stalled);
}

TEST_F(EngineTest, SinksAreCalledOnTheEngineThreadOnly) {
  Start();
  Request invalid = Plain(5, 1);
  invalid.prompt[0] = -1;
  const auto refused = Submit(std::move(invalid));
  const auto served = Submit(Plain(5, 3));
  refused.sink->AwaitEnd();
  served.sink->AwaitEnd();
  // RecordingSink CHECKs that each request's calls come from one thread.
  EXPECT_NE(served.sink->thread, std::this_thread::get_id());
  EXPECT_EQ(served.sink->thread, refused.sink->thread);
}

TEST_F(EngineTest, AFullQueueRefuses) {
  options_.max_sequences = 1;
  options_.queue_max = 2;
  std::latch gate(1);  // every Forward waits for it
  std::atomic<bool> in_forward{false};
  model_.before_forward = [&](const ForwardBatch&) {
    in_forward = true;
    gate.wait();
    return absl::OkStatus();
  };
  Start();
  const auto running = Submit(Plain(5, 2));
  while (!in_forward) Nap();
  std::vector<Submitted> waiting = {Submit(Plain(5, 2)), Submit(Plain(5, 2))};
  const auto refused = Submit(Plain(5, 2));
  EXPECT_EQ(engine_->InFlight(), 4);
  gate.count_down();
  refused.sink->AwaitEnd();
  EXPECT_EQ(refused.sink->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.sink->error.message()), StartsWith("QUEUE_FULL: 2 requests"));
  for (const Submitted& request : waiting) {
    request.sink->AwaitEnd();
    EXPECT_TRUE(request.sink->finished.has_value());
  }
  running.sink->AwaitEnd();
  EXPECT_EQ(engine_->Snapshot()->rejected_queue_full, 1u);
  // The queue has room again.
  const auto after = Submit(Plain(5, 2));
  after.sink->AwaitEnd();
  EXPECT_TRUE(after.sink->finished.has_value());
}

TEST_F(EngineTest, DestructionEndsWhatRunsAndWhatWaits) {
  options_.max_sequences = 2;
  Start();
  std::vector<Submitted> requests;
  for (int i = 0; i < 10; ++i) requests.push_back(Submit(Plain(100, 3500)));
  while (engine_->Snapshot()->running == 0) Nap();
  engine_.reset();
  for (const Submitted& request : requests) {
    ASSERT_TRUE(request.sink->ended());
    EXPECT_EQ(request.sink->error.code(), absl::StatusCode::kCancelled);
  }
}

TEST_F(EngineTest, ManyCancelledRequestsLeaveNothingBehind) {
  options_.queue_max = 2000;
  cache_options_.capacity_blocks = 64;
  cache_options_.release_polls = 2;
  Start();
  constexpr int kThreads = 4, kRequests = 250;
  std::vector<std::vector<Submitted>> requests(kThreads);
  std::vector<std::thread> clients;
  for (int c = 0; c < kThreads; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(static_cast<uint32_t>(c));
      for (int i = 0; i < kRequests; ++i) {
        requests[c].push_back(Submit(Plain(1 + static_cast<int32_t>(random() % 400), 3000)));
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        engine_->Cancel(requests[c][random() % requests[c].size()].ticket);
      }
      for (const Submitted& request : requests[c]) engine_->Cancel(request.ticket);
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& of_client : requests) {
    for (const Submitted& request : of_client) request.sink->AwaitEnd();
  }
  AwaitNoneInFlight();
  // The last release is visible although nothing runs any more: the engine polls until it is.
  while (true) {
    const auto snapshot = engine_->Snapshot();
    if (snapshot->cache.tiers[0].used_bytes == 0 && snapshot->cache.tiers[0].reserved_bytes == 0) {
      EXPECT_EQ(snapshot->cache.sequences, 0u);
      EXPECT_EQ(snapshot->running + snapshot->waiting, 0u);
      EXPECT_EQ(snapshot->cancelled + snapshot->finished[2], 1000u);
      break;
    }
    Nap();
  }
}

// A clock for several threads.
class SharedManualClock : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(std::chrono::nanoseconds(now_ns_.load())); }
  void Advance(std::chrono::nanoseconds by) { now_ns_ += by.count(); }

 private:
  std::atomic<int64_t> now_ns_{1};
};

TEST_F(EngineTest, AStepThatHangsIsSeenAsAStallByTheReader) {
  std::latch gate(1);  // every Forward waits for it
  std::atomic<bool> in_forward{false};
  model_.before_forward = [&](const ForwardBatch&) {
    in_forward = true;
    gate.wait();
    return absl::OkStatus();
  };
  SharedManualClock clock;
  auto engine =
      Engine::Create(options_, &model_, std::make_unique<FakeCache>(cache_options_), &clock);
  ASSERT_TRUE(engine.ok());
  engine_ = *std::move(engine);
  // A long rest is no stall, nor is the moment after it.
  clock.Advance(std::chrono::hours(1));
  EXPECT_FALSE(engine_->Snapshot()->stalled);
  const auto request = Submit(Plain(5, 2));
  while (!in_forward) Nap();
  EXPECT_FALSE(engine_->Snapshot()->stalled);
  clock.Advance(options_.stall_after);
  EXPECT_TRUE(engine_->Snapshot()->stalled);
  gate.count_down();
  request.sink->AwaitEnd();
  AwaitNoneInFlight();
  EXPECT_FALSE(engine_->Snapshot()->stalled);
}

TEST_F(EngineTest, RefusesOptionsThatCannotWork) {
  const auto refusal = [&](const EngineOptions& options) {
    return Engine::Create(options, &model_, std::make_unique<FakeCache>(cache_options_),
                          Clock::Real())
        .status();
  };
  EngineOptions options = options_;
  options.queue_max = 0;
  EXPECT_THAT(refusal(options).message(), HasSubstr("queue_max is 0"));
  options = options_;
  options.max_batch_tokens = 130;
  EXPECT_THAT(refusal(options).message(), HasSubstr("max_batch_tokens is 130"));
  options = options_;
  options.max_sequences = 17;
  EXPECT_THAT(refusal(options).message(), HasSubstr("max_sequences is 17"));
  options = options_;
  options.max_context = -1;
  EXPECT_THAT(refusal(options).message(), HasSubstr("max_context is -1"));
  options = options_;
  cache_options_.geometry.layers = 3;
  EXPECT_EQ(refusal(options).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace strata
