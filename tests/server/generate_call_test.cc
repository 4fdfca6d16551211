#include "server/rpc/generate_call.h"

#include <atomic>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "server/rpc/errors.h"
#include "tests/server/fake_engine.h"

namespace strata::rpc {
namespace {

class GenerateCallTest : public testing::Test {
 protected:
  GenerateCallTest() { state_.Publish(FakeModel(&tokenizer_, &engine_)); }
  // Calls leave the state when they go, so they must go before it; the engine holds on to them.
  ~GenerateCallTest() override { engine_.Forget(); }

  std::shared_ptr<GenerateCall> Start(const v1::GenerateRequest& request) {
    const CallEnvironment environment = {&state_, Clock::Real(), RequestDefaults{}, &tokenizing_,
                                         &delivery_};
    auto call = std::make_shared<GenerateCall>(environment, [this] { ++wakes_; });
    call->Start(request, std::nullopt);
    return call;
  }
  static v1::GenerateRequest Ids() {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(1);
    return request;
  }
  static DeltaEvent Delta(const std::string& text, int32_t completion) {
    DeltaEvent event;
    event.text = text;
    event.token_ids = {completion};
    event.tokens = {{completion, -0.5f}};
    event.completion_tokens = completion;
    return event;
  }

  FakeEngine engine_;
  ByteTokenizer tokenizer_;
  ServingState state_;
  WorkQueue tokenizing_{16};
  WorkQueue delivery_{16};
  std::atomic<int> wakes_{0};
  v1::GenerateEvent event_;
  absl::Status end_;
};

using Taken = GenerateCall::Taken;

TEST_F(GenerateCallTest, ASlowReaderGetsOneDeltaForAll) {
  v1::GenerateRequest request = Ids();
  request.mutable_output()->set_return_token_ids(true);
  request.mutable_output()->set_logprobs(0);
  const auto call = Start(request);
  const auto submission = engine_.Await(0);
  submission.sink->OnStarted({1, {1, 4, 8}});
  submission.sink->OnDelta(Delta("a", 1));
  submission.sink->OnDelta(Delta("b", 2));
  FinishedEvent finished;
  finished.reason = FinishReason::kStop;
  finished.stop_string = "c";
  finished.text_tail = "t";
  finished.prompt_tokens = 1;
  finished.completion_tokens = 2;
  submission.sink->OnFinished(finished);

  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_EQ(event_.started().prompt_tokens(), 1u);
  EXPECT_EQ(event_.started().effective_policy().recent_tokens(), 256u);
  EXPECT_EQ(event_.started().effective_policy().warm_tokens(), 512u);
  EXPECT_EQ(event_.started().effective_policy().min_format(), v1::KV_FORMAT_INT2);
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_EQ(event_.delta().text(), "ab");
  EXPECT_EQ(event_.delta().completion_tokens(), 2u);
  EXPECT_THAT(event_.delta().token_ids(), testing::ElementsAre(1u, 2u));
  EXPECT_EQ(event_.delta().logprobs_size(), 2);
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_EQ(event_.finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(event_.finished().stop_string(), "c");
  EXPECT_EQ(event_.finished().text_tail(), "t");
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_EQ(event_.summary().usage().completion_tokens(), 2u);
  EXPECT_EQ(event_.summary().kv().tiers_size(), 3);
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEnd);
  EXPECT_TRUE(end_.ok());
}

TEST_F(GenerateCallTest, NothingIsSentThatWasNotAskedFor) {
  v1::GenerateRequest request = Ids();
  request.mutable_output()->set_cache_stats(false);
  const auto call = Start(request);
  const auto submission = engine_.Await(0);
  submission.sink->OnPrefill(1, 2);
  submission.sink->OnDelta(Delta("a", 1));
  submission.sink->OnFinished({});
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_EQ(event_.delta().token_ids_size(), 0);
  EXPECT_EQ(event_.delta().logprobs_size(), 0);
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_TRUE(event_.has_summary());
  EXPECT_FALSE(event_.summary().has_kv());
}

TEST_F(GenerateCallTest, ProgressIsTheLatestAndEndsWithTheFirstDelta) {
  v1::GenerateRequest request = Ids();
  request.mutable_output()->set_progress(true);
  const auto call = Start(request);
  const auto submission = engine_.Await(0);
  submission.sink->OnPrefill(10, 30);
  submission.sink->OnPrefill(20, 30);
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_EQ(event_.progress().prompt_tokens_done(), 20u);
  EXPECT_EQ(event_.progress().prompt_tokens(), 30u);
  submission.sink->OnPrefill(30, 30);
  submission.sink->OnDelta(Delta("a", 1));
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEvent);
  EXPECT_TRUE(event_.has_delta());
}

TEST_F(GenerateCallTest, OneResultHoldsWhatTheStreamWouldHave) {
  const auto call = Start(Ids());
  const auto submission = engine_.Await(0);
  v1::GenerateResult result;
  submission.sink->OnStarted({1, {}});
  submission.sink->OnDelta(Delta("ab", 1));
  EXPECT_EQ(call->TakeAll(&result, &end_), Taken::kNothing);
  FinishedEvent finished;
  finished.text_tail = "c";
  finished.reason = FinishReason::kEos;
  submission.sink->OnFinished(finished);
  ASSERT_EQ(call->TakeAll(&result, &end_), Taken::kEnd);
  ASSERT_EQ(result.choices_size(), 1);
  EXPECT_EQ(result.choices(0).text(), "abc");
  EXPECT_EQ(result.choices(0).reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(result.model(), "fake");
  EXPECT_EQ(result.request_id(), submission.request.id);
  EXPECT_EQ(result.seed(), submission.request.sampling.seed);
}

TEST_F(GenerateCallTest, CancelReachesTheEngine) {
  const auto call = Start(Ids());
  const auto submission = engine_.Await(0);
  call->Cancel();
  EXPECT_TRUE(engine_.AwaitCancel(submission.ticket));
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEnd);
  EXPECT_TRUE(absl::IsCancelled(end_));
}

TEST_F(GenerateCallTest, AbortTellsTheClientWhy) {
  const auto call = Start(Ids());
  const auto submission = engine_.Await(0);
  state_.AbortAll(absl::UnavailableError("shutting down"));
  EXPECT_TRUE(engine_.AwaitCancel(submission.ticket));
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEnd);
  EXPECT_EQ(end_, absl::UnavailableError("shutting down"));
}

TEST_F(GenerateCallTest, RefusalsNeverReachTheEngine) {
  v1::GenerateRequest request = Ids();
  request.set_model("other");
  const auto call = Start(request);
  ASSERT_EQ(call->Take(&event_, &end_), Taken::kEnd);
  EXPECT_TRUE(absl::IsNotFound(end_));
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(GenerateCallTest, DrainWaitsForWhatEnteredAndLetsNothingIn) {
  auto call = Start(Ids());
  engine_.Await(0);
  state_.BeginDrain();
  const auto late = Start(Ids());
  ASSERT_EQ(late->Take(&event_, &end_), Taken::kEnd);
  EXPECT_TRUE(absl::IsUnavailable(end_));
  google::rpc::RetryInfo retry;
  EXPECT_TRUE(GetDetail(end_, &retry));
  EXPECT_FALSE(state_.AwaitIdle(std::chrono::nanoseconds(0)));
  call->Leave();
  EXPECT_TRUE(state_.AwaitIdle(std::chrono::nanoseconds(0)));
}

TEST_F(GenerateCallTest, OpenCallsAreLimited) {
  ServingState state(1);
  state.Publish(FakeModel(&tokenizer_, &engine_));
  WorkQueue queue(16);
  const CallEnvironment environment = {&state, Clock::Real(), {}, &queue, &queue};
  const auto first = std::make_shared<GenerateCall>(environment, [] {});
  const auto second = std::make_shared<GenerateCall>(environment, [] {});
  first->Start(Ids(), std::nullopt);
  second->Start(Ids(), std::nullopt);
  ASSERT_EQ(second->Take(&event_, &end_), Taken::kEnd);
  EXPECT_TRUE(absl::IsResourceExhausted(end_));
  first->Cancel();
  engine_.Forget();
}

TEST(WorkQueueTest, RunsInOrderAndRefusesWhenFull) {
  std::vector<int> ran;
  absl::Mutex gate;
  {
    WorkQueue queue(2);
    gate.Lock();
    ASSERT_TRUE(queue.Post([&] { absl::MutexLock lock(&gate); }));
    // The first may be running or still wait; two more may be all that fit.
    int posted = 0;
    while (queue.Post([&ran, posted] { ran.push_back(posted); })) ++posted;
    EXPECT_GE(posted, 1);
    EXPECT_LE(posted, 2);
    gate.Unlock();
  }  // runs what was posted
  ASSERT_FALSE(ran.empty());
  for (size_t i = 0; i < ran.size(); ++i) EXPECT_EQ(ran[i], static_cast<int>(i));
}

}  // namespace
}  // namespace strata::rpc
