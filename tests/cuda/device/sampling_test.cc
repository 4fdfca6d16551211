// Tokens that the device draws: the host's, and nothing of their logits on the link.

#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "base/check.h"
#include "gmock/gmock.h"
#include "model/output_stage.h"
#include "model/sampler_random.h"
#include "tests/cuda/device/rig.h"
#include "tests/cuda/executor/control.h"
#include "tests/kernels/linear_testing.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tiny_model.h"

namespace strata {
namespace {

Backend MakeCudaDevice() {
  auto backend = CreateCudaBackend(
      {.device = 0, .warm_attention = WarmAttention::kDevice, .cpu = {.threads = 1}});
  STRATA_CHECK(backend.ok());
  return *std::move(backend);
}

class DeviceSamplingTest : public ::testing::Test {
 protected:
  DeviceSamplingTest() { WriteTinyModel({}, folder_.Path("tiny.gguf")); }
  ~DeviceSamplingTest() override { executor::SetStreams("eager"); }

  std::unique_ptr<Rig> Make(Backend backend) {
    return std::make_unique<Rig>(std::move(backend), folder_.Path("tiny.gguf"), folder_.Path(""),
                                 PositionalPolicy{.sink_blocks = 1, .hot_blocks = 1});
  }
  // F16 pages alone: nothing but logits has a reason to cross the link, and the devices' logits are
  // as close as can be.
  static Request MakeExact(uint32_t salt, int32_t max_tokens, const SamplingParams& params) {
    Request request = Rig::Make(20 + static_cast<int32_t>(salt % 7), max_tokens, salt);
    request.policy.preset = PolicyPreset::kExact;
    request.sampling = params;
    request.sampling.seed = salt;
    return request;
  }
  static std::vector<Request> Requests();
  static uint64_t LogitBytes(Rig& rig) {
    return sizeof(float) * static_cast<uint64_t>(rig.model().config().vocab_size);
  }

  TestFolder folder_;
};

void ExpectEqual(const Rig::Result& a, const Rig::Result& b) {
  ASSERT_TRUE(a.error.ok()) << a.error;
  ASSERT_TRUE(b.error.ok()) << b.error;
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.reason, b.reason);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  // Floats of sums in double, in another order.
  for (size_t i = 0; i < a.logprobs.size(); ++i) EXPECT_NEAR(a.logprobs[i], b.logprobs[i], 1e-5);
}

// Of every kind of request that a device takes.
std::vector<Request> DeviceSamplingTest::Requests() {
  constexpr int32_t kTokens = 7;
  std::vector<Request> requests = {
      MakeExact(1, kTokens, {}),
      MakeExact(2, kTokens, {.temperature = 0.8f, .top_k = 20, .top_p = 0.9f}),
      MakeExact(3, kTokens, {.temperature = 1.3f, .min_p = 0.1f}),
      MakeExact(4, kTokens,
                {.temperature = 1,
                 .top_p = 0.95f,
                 .repetition_penalty = 1.2f,
                 .frequency_penalty = 0.3f,
                 .presence_penalty = 0.2f,
                 .logit_bias = {{7, 3.0f}, {9, -3.0f}},
                 .banned_token_ids = {11, 12}}),
      // Ends by itself: the EOS is likely, and may not come before the fourth token.
      MakeExact(5, kTokens, {.temperature = 1, .logit_bias = {{2, 6.0f}}}),
      MakeExact(6, kTokens, {.temperature = 1, .logit_bias = {{30, 5.0f}}}),
  };
  requests[2].logprobs = false;
  requests[4].stop.ignore_eos = false;
  requests[4].stop.min_tokens = 3;
  requests[5].stop.stop_token_ids = {30};
  return requests;
}

TEST_F(DeviceSamplingTest, TokensAreTheHostsAndLogitsStayOnTheDevice) {
  ASSERT_TRUE(executor::SetStreams("lazy:5"));
  const auto rig = Make(MakeCudaDevice());
  for (const Request& request : Requests()) {
    rig->model().set_draws_tokens(false);
    executor::ResetStats();
    const Rig::Result on_host = rig->Run(request);
    EXPECT_EQ(executor::GetStats().bytes_to_host, on_host.tokens.size() * LogitBytes(*rig));
    rig->model().set_draws_tokens(true);
    executor::ResetStats();
    const Rig::Result on_device = rig->Run(request);
    EXPECT_EQ(executor::GetStats().bytes_to_host, 0u);
    ExpectEqual(on_device, on_host);
  }
}

TEST_F(DeviceSamplingTest, TheSameSeedGivesTheSameTokensAndAnotherDoesNot) {
  const auto rig = Make(MakeCudaDevice());
  Request request = MakeExact(3, 8, {.temperature = 1, .top_p = 0.95f});
  const Rig::Result first = rig->Run(request);
  ExpectEqual(rig->Run(request), first);
  request.sampling.seed = 4;
  EXPECT_NE(rig->Run(request).tokens, first.tokens);
}

TEST_F(DeviceSamplingTest, OnlyRowsThatTheHostMustDrawCrossTheLink) {
  constexpr int32_t kTokens = 10;
  const auto rig = Make(MakeCudaDevice());
  const std::vector<Request> requests = {
      MakeExact(1, kTokens, {.temperature = 1}),
      MakeExact(2, kTokens, {.temperature = 1, .typical_p = 0.9f}),
      MakeExact(3, kTokens, {.temperature = 1, .top_k = 30}),
      MakeExact(4, kTokens, {.temperature = 1, .typical_p = 0.5f}),
  };
  std::vector<Rig::Result> alone;
  for (const Request& request : requests) alone.push_back(rig->Run(request));
  executor::ResetStats();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : requests) sinks.push_back(rig->Submit(request));
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->AwaitEnd();
    ASSERT_TRUE(sinks[i]->error.ok()) << sinks[i]->error;
    EXPECT_EQ(sinks[i]->tokens, alone[i].tokens);
  }
  EXPECT_EQ(executor::GetStats().bytes_to_host, 2 * kTokens * LogitBytes(*rig));
}

// How far a draw is from another token's share, as a part of the whole.
double Margin(absl::Span<const float> logits, int32_t id, double uniform) {
  double total = 0, below = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp(double{logits[i]});
    total += weight;
    if (i < static_cast<size_t>(id)) below += weight;
  }
  const double own = std::exp(double{logits[static_cast<size_t>(id)]});
  return std::min(uniform - below / total, (below + own) / total - uniform);
}

// The logits of the two devices differ (DeviceEngineTest: by at most 0.002 over F16 pages), which
// moves the border of a token's share by at most e^(2 * 0.002) - 1. Where every draw is further
// than that from its borders, the tokens are the same.
TEST_F(DeviceSamplingTest, AtTheSameSeedTokensAreTheCpus) {
  constexpr int32_t kTokens = 8;
  const double border = std::expm1(2 * 0.002);
  constexpr size_t kRequests = 5;
  // Else hundreds of tokens have shares so small that no draw is far from a border.
  const std::map<uint32_t, float> six_likely = {{20, 8.0f}, {25, 8.0f}, {30, 8.0f},
                                                {35, 8.0f}, {40, 8.0f}, {45, 8.0f}};
  std::vector<std::pair<Request, std::vector<int32_t>>> expected;
  {
    auto backend = CreateCpuBackend({.threads = 1});
    ASSERT_TRUE(backend.ok()) << backend.status();
    const auto cpu = Make(*std::move(backend));
    const auto vocabulary = static_cast<size_t>(cpu->model().config().vocab_size);
    for (uint32_t salt = 1; expected.size() < kRequests && salt < 100; ++salt) {
      const Request request =
          MakeExact(salt, kTokens, {.temperature = 1, .logit_bias = six_likely});
      const Rig::Result result = cpu->Run(request);
      ASSERT_TRUE(result.error.ok()) << result.error;
      std::vector<float> logits = cpu->model().TakeLogits();
      ASSERT_EQ(logits.size(), kTokens * vocabulary);
      double margin = 1;
      for (size_t i = 0; i < kTokens; ++i) {
        const auto row = absl::MakeSpan(logits).subspan(i * vocabulary, vocabulary);
        for (const auto& [id, bias] : six_likely) row[id] += bias;
        margin = std::min(margin, Margin(row, result.tokens[i], UniformDraw(salt, i, 0)));
      }
      ASSERT_GT(margin, -1e-6);  // a draw is in its token's share
      if (margin > border) expected.emplace_back(request, result.tokens);
    }
  }
  ASSERT_EQ(expected.size(), kRequests);
  const auto cuda = Make(MakeCudaDevice());
  for (const auto& [request, tokens] : expected) {
    const Rig::Result result = cuda->Run(request);
    ASSERT_TRUE(result.error.ok()) << result.error;
    EXPECT_EQ(result.tokens, tokens);
  }
}

// More rows than the device holds logits of at once, any of them drawn.
class OutputStageTest : public ::testing::Test {
 protected:
  static constexpr int32_t kRows = 40, kWidth = 32, kVocab = 97;

  OutputStageTest() {
    STRATA_CHECK(executor::SetStreams("lazy:3"));
    const auto weights = strata::testing::MakeWeights(WeightType::kF16, kVocab, kWidth, 1);
    WeightSource source = weights.source;
    source.data = weights.bytes.data();
    matrix_ = *backend_.linear->Prepare({&source, 1});
    STRATA_CHECK(backend_.linear->Reserve(kRows, kWidth).ok());
    std::vector<float> normed = strata::testing::Random(2).Floats(kRows * kWidth);
    for (float& x : normed) x *= 3;
    normed_ = *DeviceFloats::Upload(normed, backend_.memory.get());
  }
  ~OutputStageTest() override { executor::SetStreams("eager"); }

  Backend backend_ = MakeCudaDevice();
  std::unique_ptr<WeightMatrix> matrix_;
  DeviceFloats normed_;
};

TEST_F(OutputStageTest, DrawsSomeRowsAndBringsTheOthers) {
  auto stage = OutputStage::Create(&backend_, kVocab, kRows);
  ASSERT_TRUE(stage.ok()) << stage.status();
  std::vector<float> all(kRows * kVocab);
  executor::ResetStats();
  ASSERT_TRUE(stage->Run(*matrix_, normed_.data(), kRows, nullptr, all.data()).ok());
  EXPECT_EQ(executor::GetStats().bytes_to_host, all.size() * sizeof(float));

  std::mt19937 random(3);
  for (int round = 0; round < 6; ++round) {
    DeviceDraws draws;
    std::vector<SamplingParams> params(kRows);
    std::vector<bool> is_drawn(kRows);
    for (int32_t row = 0; row < kRows; ++row) {
      is_drawn[row] = round == 0 || random() % 3 == 0;
      params[row] = {.temperature = 0.7f,
                     .top_k = static_cast<uint32_t>(random() % 20),
                     .banned_token_ids = {static_cast<uint32_t>(random() % kVocab)},
                     .seed = random()};
      if (is_drawn[row]) draws.Add({.logits_index = row, .params = &params[row]});
    }
    ASSERT_TRUE(stage->Check(&draws, kRows).ok());
    constexpr float kUntouched = -1234;
    std::vector<float> some(all.size(), kUntouched);
    executor::ResetStats();
    ASSERT_TRUE(stage->Run(*matrix_, normed_.data(), kRows, &draws, some.data()).ok());
    ASSERT_TRUE(backend_.memory->Synchronize().ok());
    stage->Answer(&draws);
    EXPECT_EQ(executor::GetStats().bytes_to_host,
              (kRows - draws.requests().size()) * kVocab * sizeof(float));
    int32_t next = 0;
    for (int32_t row = 0; row < kRows; ++row) {
      const absl::Span<const float> logits(all.data() + row * kVocab, kVocab);
      const absl::Span<const float> brought(some.data() + row * kVocab, kVocab);
      if (is_drawn[row]) {
        EXPECT_EQ(draws.token(next++).id, Sampler().Sample(params[row], {}, logits).id) << row;
        EXPECT_THAT(brought, ::testing::Each(kUntouched)) << row;
      } else {
        EXPECT_EQ(brought, logits) << row;
      }
    }
  }
}

TEST_F(OutputStageTest, RefusesDrawsThatItCannotMake) {
  const auto stage = OutputStage::Create(&backend_, kVocab, kRows);
  ASSERT_TRUE(stage.ok()) << stage.status();
  const SamplingParams params;
  DeviceDraws draws;
  draws.Add({.logits_index = 3, .params = &params});
  EXPECT_TRUE(stage->Check(nullptr, 0).ok());
  EXPECT_TRUE(stage->Check(&draws, 4).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(stage->Check(&draws, 3)));
  auto cpu = CreateCpuBackend({.threads = 1});
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  const auto host_stage = OutputStage::Create(&*cpu, kVocab, kRows);
  ASSERT_TRUE(host_stage.ok()) << host_stage.status();
  EXPECT_FALSE(host_stage->draws_tokens());
  EXPECT_TRUE(absl::IsInvalidArgument(host_stage->Check(&draws, 4)));
}

}  // namespace
}  // namespace strata
