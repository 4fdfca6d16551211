// What one request gets: its tokens, text, finish reason, and figures.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/core_harness.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Prompt(int32_t tokens, int32_t salt = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t i = 0; i < tokens; ++i)
    prompt[static_cast<size_t>(i)] = 2 + (i * 7 + salt * 13) % 62;
  return prompt;
}

std::string TextOf(const std::vector<int32_t>& tokens) {
  return FakeTokenizer().Decode(tokens, false);
}

// A prompt whose greedy continuation has its first EOS at `index` (0 is the first token).
std::vector<int32_t> PromptWithEosAt(int32_t index) {
  for (int32_t salt = 0; salt < 20000; ++salt) {
    std::vector<int32_t> prompt = {2 + salt % 62, 2 + salt / 62 % 62, 2 + salt / 3844};
    const std::vector<int32_t> next = FakeModel::Continue(prompt, index + 1);
    if (std::find(next.begin(), next.end(), FakeTokenizer::kEos) == next.end() - 1) return prompt;
  }
  STRATA_CHECK(false);
}

TEST(GenerationTest, GivesTheModelsTokensAcrossPiecesAndBlocks) {
  for (const int32_t tokens : {1, 63, 64, 65, 127, 128, 129, 256, 300}) {
    SCOPED_TRACE(tokens);
    CoreHarness harness;
    const auto sink = harness.Run(CoreHarness::Plain(Prompt(tokens), 150));
    ASSERT_TRUE(sink->finished.has_value()) << sink->error;
    EXPECT_EQ(sink->tokens, FakeModel::Continue(Prompt(tokens), 150));
    EXPECT_EQ(sink->text, TextOf(sink->tokens));
    EXPECT_EQ(sink->finished->reason, FinishReason::kLength);
    EXPECT_EQ(sink->finished->prompt_tokens, tokens);
    EXPECT_EQ(sink->finished->completion_tokens, 150);
    EXPECT_EQ(sink->finished->usage.tokens[0], tokens + 149);  // the last one is never fed back
    EXPECT_EQ(sink->prefill_done, tokens);
    EXPECT_TRUE(harness.CacheIsEmpty());
  }
}

TEST(GenerationTest, TokensDependNeitherOnOthersNorOnTheirNumber) {
  constexpr int32_t kOthers = 16;
  CoreHarness alone;
  Request request = CoreHarness::Plain(Prompt(200), 100);
  const auto expected = alone.Run(request);

  CoreHarness::Options options;
  options.engine.max_sequences = kOthers + 1;
  options.cache.max_sequences = kOthers + 1;
  options.engine.max_batch_tokens = 400;
  CoreHarness harness(options);
  std::vector<CoreHarness::Running> others;
  for (int32_t i = 0; i < kOthers; ++i) {
    if (i == 7) others.push_back(harness.Submit(request));
    others.push_back(harness.Submit(CoreHarness::Plain(Prompt(10 + 23 * i, i + 1), 30 + 11 * i)));
    harness.RunTurns(i % 3);
  }
  ASSERT_TRUE(harness.RunUntilIdle());
  EXPECT_EQ(others[7].sink->tokens, expected->tokens);
  for (int32_t i = 0; i < kOthers; ++i) {
    const auto& sink = others[static_cast<size_t>(i < 7 ? i : i + 1)].sink;
    EXPECT_EQ(sink->tokens, FakeModel::Continue(Prompt(10 + 23 * i, i + 1), 30 + 11 * i)) << i;
  }
  EXPECT_TRUE(harness.CacheIsEmpty());
}

TEST(GenerationTest, EosEndsItIsReportedAndHasNoText) {
  CoreHarness harness;
  Request request = CoreHarness::Plain(PromptWithEosAt(4), 50);
  request.stop.ignore_eos = false;
  const auto sink = harness.Run(request);
  ASSERT_TRUE(sink->finished.has_value());
  EXPECT_EQ(sink->finished->reason, FinishReason::kEos);
  EXPECT_EQ(sink->finished->completion_tokens, 5);
  EXPECT_EQ(sink->tokens.back(), FakeTokenizer::kEos);
  EXPECT_EQ(sink->text.size(), 4u);
  EXPECT_EQ(harness.snapshot->finished[static_cast<size_t>(FinishReason::kEos)], 1u);
}

TEST(GenerationTest, IgnoreEosGoesOn) {
  CoreHarness harness;
  const std::vector<int32_t> prompt = PromptWithEosAt(4);
  const auto sink = harness.Run(CoreHarness::Plain(prompt, 20));
  EXPECT_EQ(sink->finished->reason, FinishReason::kLength);
  EXPECT_EQ(sink->tokens, FakeModel::Continue(prompt, 20));
}

TEST(GenerationTest, MinTokensKeepsEosFromBeingDrawnAndThenLetsIt) {
  CoreHarness harness;
  Request request = CoreHarness::Plain(PromptWithEosAt(2), 400);
  request.stop.ignore_eos = false;
  request.stop.min_tokens = 12;
  const auto sink = harness.Run(request);
  ASSERT_TRUE(sink->finished.has_value());
  ASSERT_GE(sink->tokens.size(), 12u);
  for (size_t i = 0; i < 12; ++i) EXPECT_NE(sink->tokens[i], FakeTokenizer::kEos) << i;
  // 1 in 64 tokens is EOS: 400 without one would be a chance of 0.2 %, and the run is fixed.
  EXPECT_EQ(sink->finished->reason, FinishReason::kEos);
}

TEST(GenerationTest, StopTokenEndsItAndIncludeStopShowsIt) {
  const std::vector<int32_t> expected = FakeModel::Continue(Prompt(5), 20);
  Request request = CoreHarness::Plain(Prompt(5), 20);
  request.stop.stop_token_ids = {expected[6]};
  const size_t first = std::find(expected.begin(), expected.end(), expected[6]) - expected.begin();
  for (const bool include : {false, true}) {
    CoreHarness harness;
    request.stop.include_stop = include;
    const auto sink = harness.Run(request);
    ASSERT_TRUE(sink->finished.has_value());
    EXPECT_EQ(sink->finished->reason, FinishReason::kStop);
    EXPECT_EQ(sink->finished->stop_token_id, expected[6]);
    EXPECT_EQ(sink->tokens.size(), first + 1);
    EXPECT_EQ(sink->text, TextOf(expected).substr(0, first + (include ? 1 : 0)));
  }
}

TEST(GenerationTest, StopStringAcrossTokens) {
  const std::vector<int32_t> expected = FakeModel::Continue(Prompt(9), 30);
  const std::string text = TextOf(expected);
  Request request = CoreHarness::Plain(Prompt(9), 30);
  request.stop.stop = {"never there", text.substr(10, 4)};
  for (const bool include : {false, true}) {
    CoreHarness harness;
    request.stop.include_stop = include;
    const auto sink = harness.Run(request);
    ASSERT_TRUE(sink->finished.has_value());
    EXPECT_EQ(sink->finished->reason, FinishReason::kStop);
    EXPECT_EQ(sink->finished->stop_string, text.substr(10, 4));
    EXPECT_EQ(sink->text, text.substr(0, include ? 14 : 10));
    EXPECT_EQ(sink->finished->completion_tokens, 14);
  }
}

TEST(GenerationTest, TextHeldBackForAStopStringComesAsTheTail) {
  const std::string text = TextOf(FakeModel::Continue(Prompt(9), 10));
  Request request = CoreHarness::Plain(Prompt(9), 10);
  request.stop.stop = {text.substr(8) + "!"};  // still possible when generation ends
  CoreHarness harness;
  const auto sink = harness.Run(request);
  EXPECT_EQ(sink->finished->reason, FinishReason::kLength);
  EXPECT_EQ(sink->finished->text_tail, text.substr(8));
  EXPECT_EQ(sink->text, text);
}

TEST(GenerationTest, StreamIntervalGroupsTokensWithoutLosingAny) {
  Request request = CoreHarness::Plain(Prompt(9), 10);
  request.stream_interval = 4;
  CoreHarness harness;
  const auto sink = harness.Run(request);
  EXPECT_EQ(sink->deltas, 3);  // 4 + 4 + 2
  EXPECT_EQ(sink->tokens, FakeModel::Continue(Prompt(9), 10));
}

TEST(GenerationTest, WithoutDetokenizeThereIsNoText) {
  Request request = CoreHarness::Plain(Prompt(9), 10);
  request.detokenize = false;
  CoreHarness harness;
  const auto sink = harness.Run(request);
  EXPECT_EQ(sink->text, "");
  EXPECT_EQ(sink->tokens.size(), 10u);
}

TEST(GenerationTest, TheContextsEndIsAReasonOfItsOwn) {
  CoreHarness harness;  // 1024
  const auto sink = harness.Run(CoreHarness::Plain(Prompt(1000), 100));
  ASSERT_TRUE(sink->finished.has_value()) << sink->error;
  EXPECT_EQ(sink->finished->reason, FinishReason::kContext);
  EXPECT_EQ(sink->finished->completion_tokens, 24);
  // Exactly what the context leaves is no clamp.
  EXPECT_EQ(harness.Run(CoreHarness::Plain(Prompt(1000), 24))->finished->reason,
            FinishReason::kLength);
}

TEST(GenerationTest, SamplingFollowsTheSeedAndNotTheCompany) {
  Request request = CoreHarness::Plain(Prompt(70), 40);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 7;
  CoreHarness harness;
  const auto first = harness.Run(request);
  const auto other = harness.Submit(CoreHarness::Plain(Prompt(300), 40));
  const auto again = harness.Run(request);
  EXPECT_EQ(first->tokens, again->tokens);
  request.sampling.seed = 8;
  EXPECT_NE(harness.Run(request)->tokens, first->tokens);
  request.sampling.seed = 7;
  request.choice = 1;
  EXPECT_NE(harness.Run(request)->tokens, first->tokens);
  EXPECT_EQ(other.sink->tokens, FakeModel::Continue(Prompt(300), 40));
}

TEST(GenerationTest, DrawsOnManyThreadsAreTheDrawsOfOne) {
  ThreadPool pool(4);
  CoreHarness::Options options;
  options.pool = &pool;
  CoreHarness harness(options);
  std::vector<Request> requests;
  std::vector<CoreHarness::Running> together;
  for (int32_t i = 0; i < 16; ++i) {
    Request request = CoreHarness::Plain(Prompt(5 + i), 40);
    request.sampling.temperature = 0.5f + 0.1f * static_cast<float>(i);
    request.sampling.top_p = i % 2 == 0 ? 0.9f : 1.0f;
    request.sampling.frequency_penalty = i % 3 == 0 ? 0.5f : 0.0f;
    request.sampling.seed = static_cast<uint64_t>(i);
    requests.push_back(request);
    together.push_back(harness.Submit(request));
  }
  ASSERT_TRUE(harness.RunUntilIdle());
  for (size_t i = 0; i < requests.size(); ++i) {
    CoreHarness alone;
    EXPECT_EQ(together[i].sink->tokens, alone.Run(requests[i])->tokens) << i;
  }
}

TEST(GenerationTest, LogProbabilitiesThatNobodyWantsAreZero) {
  CoreHarness harness;
  Request request = CoreHarness::Plain(Prompt(9), 5);
  request.logprobs = false;
  const auto sink = harness.Run(request);
  ASSERT_EQ(sink->sampled.size(), 5u);
  EXPECT_EQ(sink->tokens, FakeModel::Continue(Prompt(9), 5));
  for (const SampledToken& token : sink->sampled) EXPECT_EQ(token.logprob, 0.0f);
}

TEST(GenerationTest, DeltasCarryLogProbabilities) {
  CoreHarness harness;
  const auto sink = harness.Run(CoreHarness::Plain(Prompt(9), 5));
  ASSERT_EQ(sink->sampled.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(sink->sampled[i].id, sink->tokens[i]);
    // The largest of 64 logits in [0, 8): its share is above 1/64 and below 1.
    EXPECT_LT(sink->sampled[i].logprob, 0.0f);
    EXPECT_GT(sink->sampled[i].logprob, -4.16f);  // -ln 64
  }
}

TEST(GenerationTest, TimesAreMeasured) {
  CoreHarness harness;
  harness.model.before_forward = [&](const ForwardBatch&) {
    harness.clock.Advance(std::chrono::milliseconds(10));
    return absl::OkStatus();
  };
  Request request = CoreHarness::Plain(Prompt(200), 5);  // two pieces
  request.received = harness.clock.Now() + std::chrono::milliseconds(1);
  harness.clock.Advance(std::chrono::milliseconds(4));
  const auto sink = harness.Run(request);
  const RequestTiming& timing = sink->finished->timing;
  EXPECT_EQ(timing.queued, std::chrono::milliseconds(3));
  EXPECT_EQ(timing.prefill, std::chrono::milliseconds(20));
  EXPECT_EQ(timing.time_to_first_token, std::chrono::milliseconds(23));
  EXPECT_EQ(timing.decode, std::chrono::milliseconds(40));
  EXPECT_EQ(sink->prefill_calls, 2);

  const EngineSnapshot& totals = *harness.snapshot;
  EXPECT_EQ(totals.steps, 6u);
  EXPECT_EQ(totals.prompt_tokens, 200u);
  EXPECT_EQ(totals.generation_tokens, 5u);
  const auto count = [](const HistogramSnapshot& histogram) {
    EXPECT_EQ(histogram.counts.size(), histogram.bounds.size() + 1);
    return std::accumulate(histogram.counts.begin(), histogram.counts.end(), uint64_t{0});
  };
  EXPECT_EQ(count(totals.time_to_first_token), 1u);
  EXPECT_EQ(count(totals.inter_token_latency), 4u);
  EXPECT_NEAR(totals.inter_token_latency.sum, 0.04, 1e-9);
  EXPECT_EQ(count(totals.step_seconds_prefill), 2u);
  EXPECT_EQ(count(totals.step_seconds_decode), 4u);
  EXPECT_NEAR(totals.step_seconds_decode.sum, 0.04, 1e-9);
  EXPECT_EQ(count(totals.step_batch_tokens), 6u);
  EXPECT_EQ(totals.step_batch_tokens.sum, 204);
  EXPECT_EQ(totals.step_batch_tokens.counts[0], 4u);  // bounds belong to their bucket
  EXPECT_EQ(count(totals.request_duration), 1u);
  EXPECT_EQ(count(totals.request_queue), 1u);
  EXPECT_EQ(count(totals.request_prefill), 1u);
  EXPECT_EQ(count(totals.request_decode), 1u);
  // 23 ms lies in the bucket (0.02, 0.04], the fifth.
  EXPECT_EQ(totals.time_to_first_token.counts[4], 1u);
}

TEST(GenerationTest, TheEffectivePolicyIsEchoed) {
  CoreHarness harness;
  Request request = CoreHarness::Plain(Prompt(5), 1);
  request.policy.preset = PolicyPreset::kCompact;
  const auto sink = harness.Run(request);
  EXPECT_EQ(sink->started->policy, (PositionalPolicy{1, 2, 4}));  // pieces of 128 tokens
  EXPECT_EQ(sink->started->prompt_tokens, 5);
}

// ---- Refusals.

absl::Status RefusalOf(const std::function<void(Request*)>& spoil) {
  CoreHarness harness;
  Request request = CoreHarness::Plain(Prompt(5), 10);
  spoil(&request);
  const auto sink = harness.Run(request);
  EXPECT_FALSE(sink->started.has_value());
  EXPECT_EQ(harness.snapshot->rejected_invalid, 1u);
  EXPECT_EQ(sink->error.code(), absl::StatusCode::kInvalidArgument) << sink->error;
  EXPECT_EQ(harness.gauges.in_flight, 0);
  EXPECT_EQ(harness.gauges.waiting, 0);
  return sink->error;
}

TEST(RefusalTest, SaysFieldValueAndLimit) {
  EXPECT_THAT(RefusalOf([](Request* r) { r->prompt.clear(); }).message(), HasSubstr("prompt"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->prompt[3] = 64; }).message(),
              HasSubstr("prompt[3] is 64, the vocabulary has 64"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->prompt[0] = -1; }).message(),
              HasSubstr("prompt[0] is -1"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->prompt = Prompt(9000); }).message(),
              HasSubstr("CONTEXT_LENGTH_EXCEEDED: prompt 9000 tokens, limit 1024"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->prompt = Prompt(1024); }).message(),
              HasSubstr("CONTEXT_LENGTH_EXCEEDED: prompt 1024 tokens, limit 1024"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->stop.max_tokens = 0; }).message(),
              HasSubstr("max_tokens is 0"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->stop.min_tokens = 11; }).message(),
              HasSubstr("min_tokens is 11"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->stop.stop = {"a", ""}; }).message(), HasSubstr("stop"));
  EXPECT_THAT(RefusalOf([](Request* r) {
                r->stop.stop = {"a"};
                r->detokenize = false;
              }).message(),
              HasSubstr("detokenize"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->stop.stop_token_ids = {70}; }).message(),
              HasSubstr("stop_token_ids[0] is 70"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->stream_interval = 0; }).message(),
              HasSubstr("stream_interval is 0"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->sampling.temperature = -1; }).message(),
              HasSubstr("temperature"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->policy.sink_tokens = -5; }).message(),
              HasSubstr("sink_tokens is -5"));
  EXPECT_THAT(RefusalOf([](Request* r) { r->stop.time_limit = std::chrono::seconds(0); }).message(),
              HasSubstr("time_limit"));
}

}  // namespace
}  // namespace strata
