// Sampling on the device: the tokens that model/sampler.cc draws, over many seeds and requests.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/sample_launch.h"
#include "kernels/draw_filter.h"
#include "model/device_draws.h"
#include "model/sampler.h"
#include "tests/cuda/device_buffer.h"

namespace strata {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(int32_t vocab, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = scale * (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f);
  return logits;
}

// One request with its own logits.
struct Request {
  SamplingParams params;
  std::vector<int32_t> prompt, output, suppressed;
  uint64_t position = 0;
  uint32_t choice = 0;
  bool with_logprob = true;

  SamplingState state() const { return {prompt, output, suppressed, position, choice}; }
};

std::vector<SampledToken> SampleOnHost(const std::vector<Request>& requests,
                                       const std::vector<float>& logits, int32_t vocab) {
  Sampler sampler;
  std::vector<SampledToken> tokens;
  for (size_t i = 0; i < requests.size(); ++i) {
    tokens.push_back(sampler.Sample(requests[i].params, requests[i].state(),
                                    {logits.data() + i * vocab, static_cast<size_t>(vocab)},
                                    requests[i].with_logprob));
  }
  return tokens;
}

std::vector<SampledRow> SampleOnDevice(const std::vector<Request>& requests,
                                       const std::vector<float>& logits, int32_t vocab) {
  DeviceDraws draws;
  for (size_t i = 0; i < requests.size(); ++i) {
    draws.Add({.logits_index = static_cast<int32_t>(i),
               .params = &requests[i].params,
               .state = requests[i].state(),
               .with_logprob = requests[i].with_logprob});
  }
  draws.Prepare(vocab);
  std::vector<TokenEdit> edits(draws.edits().begin(), draws.edits().end());
  edits.emplace_back();  // never empty
  const DeviceBuffer<float> device_logits(logits);
  const DeviceBuffer<SampleRow> device_rows({draws.rows().begin(), draws.rows().end()});
  const DeviceBuffer<TokenEdit> device_edits(edits);
  DeviceBuffer<float> tempered(requests.size() * vocab);
  DeviceBuffer<uint64_t> weights(requests.size() * vocab);
  DeviceBuffer<SampledRow> out(requests.size());
  cuda::SampleArgs args;
  args.logits = device_logits.data();
  args.vocab = vocab;
  args.rows = device_rows.data();
  args.count = static_cast<int32_t>(requests.size());
  args.edits = device_edits.data();
  args.scratch = {tempered.data(), weights.data()};
  args.out = out.data();
  EXPECT_EQ(cuda::AllowSample(), cudaSuccess);
  EXPECT_EQ(cuda::LaunchSample(args, nullptr), cudaSuccess);
  return out.Download();
}

std::string Text(const SamplingParams& params) {
  std::ostringstream text;
  text << "temperature " << params.temperature << ", top_k " << params.top_k << ", top_p "
       << params.top_p << ", min_p " << params.min_p << ", repetition " << params.repetition_penalty
       << ", frequency " << params.frequency_penalty << ", " << params.logit_bias.size()
       << " biases, " << params.banned_token_ids.size() << " bans";
  return text.str();
}

// The ids are equal. Log probabilities: both sum e^x of floats within two units in the last place
// in double; a float holds the result.
void ExpectSame(const std::vector<Request>& requests, const std::vector<float>& logits,
                int32_t vocab) {
  const std::vector<SampledToken> host = SampleOnHost(requests, logits, vocab);
  const std::vector<SampledRow> device = SampleOnDevice(requests, logits, vocab);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(device[i].id, host[i].id)
        << "request " << i << " of " << vocab << " tokens: " << Text(requests[i].params);
    if (std::isinf(host[i].logprob)) {
      ASSERT_EQ(device[i].logprob, host[i].logprob);
    } else {
      ASSERT_NEAR(device[i].logprob, host[i].logprob, 1e-6 + 1e-6 * std::abs(host[i].logprob))
          << "request " << i;
    }
  }
}

void TestDraws(std::initializer_list<int32_t> vocabularies, uint32_t count) {
  int draws = 0;
  for (const int32_t vocab : vocabularies) {
    std::vector<Request> requests;
    std::vector<float> logits;
    for (uint32_t i = 0; i < count; ++i) {
      constexpr float kTemperatures[] = {0.2f, 1.0f, 3.7f, 100.0f};
      Request request;
      request.params.temperature = kTemperatures[i % 4];
      request.params.seed = uint64_t{i} * 0x9E3779B97F4A7C15u + i;
      request.position = i % 5 == 0 ? uint64_t{i} << 33 : i;
      request.choice = i % 3;
      request.with_logprob = i % 2 == 0;
      requests.push_back(request);
      const std::vector<float> row = RandomLogits(vocab, i + vocab, i % 7 == 0 ? 60.0f : 6.0f);
      logits.insert(logits.end(), row.begin(), row.end());
      ++draws;
    }
    ExpectSame(requests, logits, vocab);
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf("%d draws compared\n", draws);
}

TEST(CudaSample, DrawsWhatTheHostDraws) { TestDraws({2, 1100}, 8); }

TEST(CudaSample, LargeNumbersOfDraws) { TestDraws({1, 2, 33, 1000, 1025, 3000}, 200); }

// A vocabulary of usual size, and logits so even that the draws reach all of it.
TEST(CudaSample, LargeVocabularies) {
  for (const int32_t vocab : {49152, 151936}) {
    std::vector<Request> requests(16);
    std::vector<float> logits;
    for (uint32_t i = 0; i < requests.size(); ++i) {
      requests[i].params.temperature = i == 0 ? 0.0f : 0.5f * i;
      requests[i].params.seed = 77 * i;
      if (i % 4 == 1) requests[i].params.top_k = 40 * i;
      if (i % 4 == 2) requests[i].params.min_p = 0.05f;
      if (i % 3 == 1) requests[i].params.top_p = 0.95f;
      const std::vector<float> row = RandomLogits(vocab, i, 4.0f);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    ExpectSame(requests, logits, vocab);
  }
}

TEST(CudaSample, GreedyTakesTheLowestOfEquals) {
  const int32_t vocab = 700;
  std::vector<Request> requests(4);
  std::vector<float> logits(4 * vocab, -1.0f);
  logits[650] = logits[123] = logits[124] = 5.0f;
  logits[vocab + 600] = -0.0f;
  logits[vocab + 610] = 0.0f;
  for (int32_t i = 0; i < vocab; ++i)
    logits[2 * vocab + i] = i == 9 ? NAN : i == 8 ? kInfinity : 1.0f;
  requests[3].params.temperature = 0.5e-6f;
  ExpectSame(requests, logits, vocab);
  const std::vector<SampledRow> device = SampleOnDevice(requests, logits, vocab);
  EXPECT_EQ(device[0].id, 123);
  EXPECT_EQ(device[1].id, 600);
  EXPECT_EQ(device[2].id, 8);
  EXPECT_EQ(device[3].id, 0);
}

float Pick(std::initializer_list<float> values, std::mt19937* random) {
  return *(values.begin() + (*random)() % values.size());
}

void TestEdits(std::initializer_list<int32_t> vocabularies, uint32_t count) {
  std::mt19937 random(4);
  const auto pick = [&](std::initializer_list<float> values) { return Pick(values, &random); };
  for (const int32_t vocab : vocabularies) {
    std::vector<Request> requests;
    std::vector<float> logits;
    const auto token = [&] { return static_cast<uint32_t>(random() % vocab); };
    for (uint32_t i = 0; i < count; ++i) {
      Request request;
      request.params.temperature = pick({0, 0.7f, 1.0f, 5.0f});
      request.params.repetition_penalty = pick({1, 1.3f, 0.7f});
      request.params.repetition_window = static_cast<int32_t>(pick({-1, 0, 3, 15}));
      request.params.frequency_penalty = pick({0, 0.4f, -0.3f});
      request.params.presence_penalty = pick({0, 1.1f, -0.2f});
      request.params.seed = i;
      for (uint32_t n = random() % 4; n > 0; --n)
        request.params.logit_bias[token()] = pick({-9, 6});
      for (uint32_t n = random() % 4; n > 0; --n)
        request.params.banned_token_ids.push_back(token());
      request.suppressed.assign(random() % 2, static_cast<int32_t>(token()));
      for (uint32_t n = random() % 12; n > 0; --n) request.prompt.push_back(token());
      for (uint32_t n = random() % 12; n > 0; --n) request.output.push_back(token() % 6 % vocab);
      if (i % 9 == 0) request.prompt.push_back(vocab + 3), request.output.push_back(-1);
      request.position = request.output.size();
      requests.push_back(request);
      std::vector<float> row = RandomLogits(vocab, i, 3.0f);
      if (i % 10 == 0) row[token()] = NAN;
      if (i % 11 == 0) row[token()] = -kInfinity;
      logits.insert(logits.end(), row.begin(), row.end());
    }
    ExpectSame(requests, logits, vocab);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(CudaSample, EditsAreTheHosts) { TestEdits({5, 600}, 10); }

TEST(CudaSample, LargeNumbersOfEdits) { TestEdits({5, 40, 2000}, 80); }

// Logits of `levels` different values, so that filters end among equals; 0: all different.
std::vector<float> TiedLogits(int32_t vocab, uint32_t seed, float scale, int levels) {
  std::vector<float> logits = RandomLogits(vocab, seed, scale);
  if (levels == 0) return logits;
  const float step = 2 * scale / static_cast<float>(levels);
  for (float& x : logits) x = step * std::floor(x / step);
  return logits;
}

void TestFilters(std::initializer_list<int32_t> vocabularies, uint32_t count) {
  std::mt19937 random(5);
  const auto pick = [&](std::initializer_list<float> values) { return Pick(values, &random); };
  int draws = 0, different = 0;
  for (const int32_t vocab : vocabularies) {
    std::vector<Request> requests;
    std::vector<float> logits;
    const auto token = [&] { return static_cast<uint32_t>(random() % vocab); };
    for (uint32_t i = 0; i < count; ++i) {
      Request request;
      request.params.temperature = pick({0.3f, 0.8f, 1.0f, 4.0f, 100.0f});
      request.params.top_k = static_cast<uint32_t>(pick({0, 0, 1, 2, 7, 50, 700, 4e9f}));
      request.params.top_p = pick({1, 1, 0.9999999f, 0.99f, 0.9f, 0.5f, 0.25f, 1e-3f, 1e-30f});
      request.params.min_p = pick({0, 0, 1e-13f, 0.01f, 0.3f, 0.999f, 1});
      request.params.repetition_penalty = pick({1, 1, 1.3f});
      request.params.frequency_penalty = pick({0, 0, 0.4f});
      request.params.seed = uint64_t{i} * 0x9E3779B97F4A7C15u;
      request.with_logprob = false;
      if (random() % 3 == 0) request.params.logit_bias[token()] = 6;
      if (random() % 3 == 0) request.params.banned_token_ids = {token(), token()};
      for (uint32_t n = random() % 8; n > 0; --n) request.output.push_back(token());
      request.position = request.output.size();
      const float scale = pick({0.01f, 3.0f, 12.0f, 60.0f});
      const int levels = static_cast<int>(pick({0, 1, 2, 5, 40}));
      std::vector<float> row = TiedLogits(vocab, i + vocab, scale, levels);
      if (i % 10 == 0) row[token()] = NAN;
      if (i % 7 == 0) row[token()] = -kInfinity;
      if (i % 31 == 0) row[token()] = kInfinity;
      logits.insert(logits.end(), row.begin(), row.end());
      requests.push_back(std::move(request));
    }
    ExpectSame(requests, logits, vocab);
    if (::testing::Test::HasFatalFailure()) return;
    // That the filters decide something.
    std::vector<Request> unfiltered = requests;
    for (Request& request : unfiltered) {
      request.params.top_k = 0;
      request.params.top_p = 1;
      request.params.min_p = 0;
    }
    const std::vector<SampledToken> with = SampleOnHost(requests, logits, vocab);
    const std::vector<SampledToken> without = SampleOnHost(unfiltered, logits, vocab);
    for (uint32_t i = 0; i < count; ++i) different += with[i].id != without[i].id ? 1 : 0;
    draws += static_cast<int>(count);
  }
  EXPECT_GT(different, draws / 4);
  std::printf("%d draws compared; without filters %d are others\n", draws, different);
}

TEST(CudaSample, FiltersAreTheHosts) { TestFilters({3, 1100}, 12); }

TEST(CudaSample, LargeNumbersOfFilters) { TestFilters({1, 2, 5, 33, 511, 1025, 3001}, 300); }

// A cut among equals: the lowest ids are kept, over more than one tile of ids.
TEST(CudaSample, FiltersKeepTheLowestOfEquals) {
  const int32_t vocab = 2500;
  const auto drawn = [&](const SamplingParams& params) {
    std::vector<Request> requests(10);
    for (uint32_t i = 0; i < requests.size(); ++i) {
      requests[i].params = params;
      requests[i].params.temperature = 1;
      requests[i].params.seed = i;
      requests[i].with_logprob = false;
    }
    const std::vector<float> logits(requests.size() * vocab, 0.5f);
    const std::vector<SampledToken> host = SampleOnHost(requests, logits, vocab);
    const std::vector<SampledRow> device = SampleOnDevice(requests, logits, vocab);
    int32_t greatest = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(device[i].id, host[i].id);
      greatest = std::max(greatest, device[i].id);
    }
    return greatest;
  };
  EXPECT_EQ(drawn({.top_k = 1}), 0);
  EXPECT_EQ(drawn({.top_p = 1e-30f}), 0);
  const int32_t of_2000 = drawn({.top_k = 2000});
  EXPECT_LT(of_2000, 2000);
  EXPECT_GT(of_2000, 1500);  // all ten below would be 1 in 18
  const int32_t of_half = drawn({.top_p = 0.5f});
  EXPECT_LT(of_half, 1250);
  EXPECT_GT(of_half, 937);
}

// Nothing is left to choose from: the lowest id that is allowed, or 0.
TEST(CudaSample, NothingLeft) {
  const int32_t vocab = 600;
  std::vector<Request> requests(5);
  std::vector<float> logits(requests.size() * vocab, -kInfinity);
  for (uint32_t i = 0; i < 550; ++i) requests[1].params.banned_token_ids.push_back(i);
  for (int32_t i = 0; i < vocab; ++i) requests[2].suppressed.push_back(i);
  requests[3].params.logit_bias = {{2, 5.0f}};
  requests[3].params.temperature = 1;
  for (int32_t i = 0; i < vocab; ++i) logits[4 * vocab + i] = NAN;
  ExpectSame(requests, logits, vocab);
  EXPECT_EQ(SampleOnDevice(requests, logits, vocab)[1].id, 550);
}

TEST(CudaSample, SaysWhichRequestsItTakes) {
  SamplingParams params;
  params.temperature = 1;
  params.repetition_penalty = 1.2f;
  params.logit_bias = {{1, 2.0f}};
  EXPECT_TRUE(DeviceCanSample(params, 100));
  EXPECT_FALSE(DeviceCanSample(params, 0));
  EXPECT_FALSE(DeviceCanSample(params, kSampleVocabMax + 1));
  params.top_k = 5;
  params.top_p = 0.9f;
  params.min_p = 0.1f;
  EXPECT_TRUE(DeviceCanSample(params, 100));
  params.typical_p = 0.9f;
  EXPECT_FALSE(DeviceCanSample(params, 100));
  params.temperature = 0;
  EXPECT_TRUE(DeviceCanSample(params, 100));
}

TEST(CudaSample, RefusesWhatItCannotDo) {
  DeviceBuffer<float> logits(4);
  DeviceBuffer<SampleRow> rows(1);
  DeviceBuffer<SampledRow> out(1);
  cuda::SampleArgs args;
  EXPECT_EQ(cuda::LaunchSample(args, nullptr), cudaSuccess);  // no rows
  args.logits = logits.data();
  args.vocab = 4;
  args.rows = rows.data();
  args.count = 1;
  args.out = out.data();
  const auto refused = [&](void (*change)(cuda::SampleArgs*)) {
    cuda::SampleArgs changed = args;
    change(&changed);
    return cuda::LaunchSample(changed, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](cuda::SampleArgs* a) { a->vocab = 0; }));
  EXPECT_TRUE(refused([](cuda::SampleArgs* a) { a->vocab = kSampleVocabMax + 1; }));
  EXPECT_TRUE(refused([](cuda::SampleArgs* a) { a->count = -1; }));
  EXPECT_TRUE(refused([](cuda::SampleArgs* a) { a->logits = nullptr; }));
  EXPECT_TRUE(refused([](cuda::SampleArgs* a) { a->rows = nullptr; }));
  EXPECT_TRUE(refused([](cuda::SampleArgs* a) { a->out = nullptr; }));
}

// Within one part in 2^39 (or one unit) of 2^40 e^x, and never greater for a lesser logit.
TEST(DrawWeightTest, IsTheExponential) {
  EXPECT_EQ(DrawWeight(0.0f), uint64_t{1} << 40);
  EXPECT_EQ(DrawWeight(-0.0f), uint64_t{1} << 40);
  EXPECT_EQ(DrawWeight(-28.0f), 1u);
  EXPECT_EQ(DrawWeight(-29.0f), 0u);
  EXPECT_EQ(DrawWeight(-3e38f), 0u);
  EXPECT_EQ(DrawWeight(-kInfinity), 0u);
  EXPECT_EQ(DrawWeight(NAN), 0u);
  uint64_t before = uint64_t{1} << 40;
  for (int i = 0; i <= 30000; ++i) {
    const float x = -static_cast<float>(i) / 1000;
    const double exact = std::exp(double{x}) * 0x1p40;
    const auto weight = static_cast<double>(DrawWeight(x));
    ASSERT_LE(std::abs(weight - exact), exact * 0x1p-39 + 1) << x;
    ASSERT_LE(DrawWeight(x), before) << x;
    before = DrawWeight(x);
  }
}

// A part of a total is reached by as many units as arithmetic says, also where it is a whole
// number.
TEST(DrawFilterTest, TargetsAreMetByReachingTheFraction) {
  const auto reached_by = [](float p, uint64_t total) {
    return MassTarget(MassFraction(p), total) + 1;
  };
  EXPECT_EQ(reached_by(0.5f, 4), 2u);
  EXPECT_EQ(reached_by(0.5f, 5), 3u);
  EXPECT_EQ(reached_by(0.75f, uint64_t{1} << 60), uint64_t{3} << 58);
  EXPECT_EQ(reached_by(1e-30f, uint64_t{1} << 60), 1u);
  EXPECT_EQ(reached_by(0x1p-30f, uint64_t{1} << 40), 1u << 10);
  EXPECT_EQ(reached_by(1 - 0x1p-24f, uint64_t{1} << 24), (1u << 24) - 1);
  EXPECT_EQ(LeastWeight(1.0f), uint64_t{1} << 40);
  EXPECT_EQ(LeastWeight(0.5f), uint64_t{1} << 39);
  EXPECT_EQ(LeastWeight(1e-30f), 1u);
  EXPECT_EQ(LeastWeight(0.0f), 0u);
  EXPECT_EQ(MulHigh64(~uint64_t{0}, ~uint64_t{0}), ~uint64_t{1});
}

TEST(DrawWeightTest, IsTheSameOfMany) {
  std::vector<float> logits = RandomLogits(1001, 1, 16.0f);
  for (float& x : logits) x -= 16.0f;
  logits[10] = NAN;
  logits[11] = -kInfinity;
  std::vector<uint64_t> weights(logits.size());
  DrawWeights(logits.data(), logits.size(), weights.data());
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_EQ(weights[i], DrawWeight(logits[i])) << i;
}

}  // namespace
}  // namespace strata
