// The sampler against its stated formulas, written out slowly in double precision.

#include "model/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/sampler_random.h"

namespace strata {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- the slow sampler ------------------------------------------------------------------------

struct Choice {
  int32_t id;
  double logit;
  double p;
};

void Normalise(std::vector<Choice>* choices) {
  double total = 0;
  for (const Choice& c : *choices) total += c.p;
  for (Choice& c : *choices) c.p /= total;
}

// Keeps the first in the order of `key` (ascending; equals by id) whose mass reaches `mass`.
template <typename Key>
void SlowKeepMass(std::vector<Choice>* choices, double mass, Key key) {
  std::stable_sort(choices->begin(), choices->end(), [&](const Choice& a, const Choice& b) {
    return std::make_pair(key(a), a.id) < std::make_pair(key(b), b.id);
  });
  double sum = 0;
  size_t kept = 0;
  while (kept < choices->size() && sum < mass) sum += (*choices)[kept++].p;
  choices->resize(kept);
  Normalise(choices);
}

// The distribution that is drawn from, by id; for temperature 0 one token of probability 1.
std::map<int32_t, double> SlowDistribution(const SamplingParams& params, const SamplingState& state,
                                           const std::vector<float>& logits) {
  std::vector<double> adjusted(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) adjusted[id] += bias;
  for (const uint32_t id : params.banned_token_ids) adjusted[id] = -INFINITY;
  for (const int32_t id : state.suppressed) adjusted[static_cast<size_t>(id)] = -INFINITY;
  std::vector<int32_t> seen(state.prompt.begin(), state.prompt.end());
  seen.insert(seen.end(), state.output.begin(), state.output.end());
  if (params.repetition_window >= 0) {
    while (seen.size() > static_cast<size_t>(params.repetition_window)) seen.erase(seen.begin());
  }
  for (const int32_t id : std::set<int32_t>(seen.begin(), seen.end())) {
    double& logit = adjusted[static_cast<size_t>(id)];
    const double penalty = params.repetition_penalty;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  for (size_t id = 0; id < adjusted.size(); ++id) {
    const auto times = std::count(state.output.begin(), state.output.end(), id);
    adjusted[id] -= static_cast<double>(params.frequency_penalty) * static_cast<double>(times);
    if (times > 0) adjusted[id] -= params.presence_penalty;
  }
  std::vector<Choice> choices;
  for (size_t id = 0; id < adjusted.size(); ++id) {
    choices.push_back({static_cast<int32_t>(id), adjusted[id], 0});
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.logit > b.logit; });
  if (params.temperature == 0) return {{choices[0].id, 1.0}};
  if (params.top_k > 0 && params.top_k < choices.size()) choices.resize(params.top_k);
  for (Choice& c : choices) c.p = std::exp((c.logit - choices[0].logit) / params.temperature);
  Normalise(&choices);
  if (params.typical_p < 1) {
    double entropy = 0;
    for (const Choice& c : choices) entropy -= c.p > 0 ? c.p * std::log(c.p) : 0;
    SlowKeepMass(&choices, params.typical_p,
                 [&](const Choice& c) { return std::abs(-std::log(c.p) - entropy); });
  }
  if (params.top_p < 1) {
    SlowKeepMass(&choices, params.top_p, [](const Choice& c) { return -c.p; });
  }
  double greatest = 0;
  for (const Choice& c : choices) greatest = std::max(greatest, c.p);
  std::map<int32_t, double> distribution;
  double total = 0;
  for (const Choice& c : choices) total += c.p >= params.min_p * greatest ? c.p : 0;
  for (const Choice& c : choices) {
    if (c.p >= params.min_p * greatest) distribution[c.id] = c.p / total;
  }
  return distribution;
}

// The token whose share of [0, 1), by ascending id, holds the draw.
int32_t SlowDraw(const std::map<int32_t, double>& distribution, double uniform) {
  double sum = 0;
  for (const auto& [id, p] : distribution) {
    sum += p;
    if (sum > uniform) return id;
  }
  return distribution.rbegin()->first;
}

std::vector<float> RandomLogits(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(generator);
  return logits;
}

int32_t SampleId(const SamplingParams& params, const SamplingState& state,
                 const std::vector<float>& logits) {
  return Sampler().Sample(params, state, logits).id;
}

// ---- the generator ---------------------------------------------------------------------------

TEST(SamplerRandomTest, PhiloxGivesItsPublishedValues) {
  // Known answers for philox4x32 with 10 rounds, from the authors' Random123 distribution.
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplerRandomTest, DrawsAreUniformAlongEveryCoordinate) {
  // Chi-square with 63 degrees of freedom: above 116 with probability 5e-5 (Wilson-Hilferty:
  // 63 (1 - 2/567 + 3.9 sqrt(2/567))^3 = 116). The seeds are fixed, so a pass stays a pass.
  constexpr int kBins = 64;
  constexpr int kDraws = 64000;
  for (int coordinate = 0; coordinate < 3; ++coordinate) {
    std::vector<int> bins(kBins);
    for (uint32_t i = 0; i < kDraws; ++i) {
      const double u = coordinate == 0   ? UniformDraw(i, 3, 0)
                       : coordinate == 1 ? UniformDraw(42, i, 0)
                                         : UniformDraw(42, 3, i);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      ++bins[static_cast<size_t>(u * kBins)];
    }
    double chi2 = 0;
    for (const int n : bins) {
      const double expected = static_cast<double>(kDraws) / kBins;
      chi2 += (n - expected) * (n - expected) / expected;
    }
    EXPECT_LT(chi2, 116.0) << coordinate;
  }
}

TEST(SamplerRandomTest, EveryArgumentMatters) {
  std::set<double> draws;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
    for (const uint64_t position : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
      for (const uint32_t choice : {0u, 1u, 2u}) draws.insert(UniformDraw(seed, position, choice));
    }
  }
  EXPECT_EQ(draws.size(), 27u);
}

// ---- formulas --------------------------------------------------------------------------------

TEST(SamplerTest, AgreesWithTheSlowSampler) {
  std::mt19937 generator(99);
  const auto pick = [&](const std::vector<float>& values) {
    return values[generator() % values.size()];
  };
  for (uint32_t round = 0; round < 3000; ++round) {
    const size_t vocab = 5 + generator() % 600;
    const std::vector<float> logits = RandomLogits(vocab, round);
    SamplingParams params;
    params.temperature = pick({0, 0.3f, 1, 1, 2.5f});
    params.top_k = static_cast<uint32_t>(pick({0, 0, 1, 7, 50, 1000}));
    params.top_p = pick({1, 1, 0.9f, 0.5f, 0.05f});
    params.typical_p = pick({1, 1, 0.95f, 0.4f});
    params.min_p = pick({0, 0, 0.02f, 0.3f, 1});
    params.repetition_penalty = pick({1, 1, 1.3f, 0.8f});
    params.repetition_window = static_cast<int32_t>(pick({-1, 0, 5, 14}));
    params.frequency_penalty = pick({0, 0.7f, -0.4f});
    params.presence_penalty = pick({0, 1.1f, -0.2f});
    params.seed = round;
    const auto token = [&] { return static_cast<uint32_t>(generator() % vocab); };
    if (round % 3 == 0) params.logit_bias = {{token(), 4.0f}, {token(), -3.0f}};
    if (round % 4 == 0) params.banned_token_ids = {token(), token()};
    std::vector<int32_t> prompt(generator() % 12);
    std::vector<int32_t> output(generator() % 12);
    for (int32_t& id : prompt) id = static_cast<int32_t>(token());
    for (int32_t& id : output) id = static_cast<int32_t>(token() % 6 % vocab);
    const std::vector<int32_t> suppressed(round % 5 == 0 ? 1 : 0, static_cast<int32_t>(token()));
    const SamplingState state = {prompt, output, suppressed, output.size(), round % 3};
    ASSERT_TRUE(params.Validate(static_cast<int32_t>(vocab)).ok());

    const auto distribution = SlowDistribution(params, state, logits);
    const double uniform = UniformDraw(params.seed, state.position, state.choice);
    EXPECT_EQ(SampleId(params, state, logits), SlowDraw(distribution, uniform)) << round;
  }
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
  const std::vector<float> logits = RandomLogits(40, 8);
  SamplingParams params;
  params.temperature = 1.5f;
  params.top_p = 0.95f;
  params.typical_p = 0.98f;
  const auto distribution = SlowDistribution(params, {}, logits);
  ASSERT_GT(distribution.size(), 8u);
  constexpr int kDraws = 40000;
  std::map<int32_t, int> counts;
  Sampler sampler;
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    ++counts[sampler.Sample(params, {}, logits).id];
  }
  double chi2 = 0;
  int drawn = 0;
  for (const auto& [id, p] : distribution) {
    chi2 += (counts[id] - p * kDraws) * (counts[id] - p * kDraws) / (p * kDraws);
    drawn += counts[id];
  }
  EXPECT_EQ(drawn, kDraws);  // nothing that was filtered out
  // Mean and standard deviation of chi-square are n and sqrt(2n): five deviations above.
  const double n = static_cast<double>(distribution.size()) - 1;
  EXPECT_LT(chi2, n + 5 * std::sqrt(2 * n));
}

TEST(SamplerTest, LogprobIsOfTheRawDistribution) {
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f, -4.0f};
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  SamplingParams params;
  params.temperature = 0.5f;
  params.logit_bias = {{3, 50.0f}};
  params.frequency_penalty = 2.0f;
  const SampledToken token = Sampler().Sample(params, {}, logits);
  ASSERT_EQ(token.id, 3);
  // A float sum of 4 terms and one subtraction: a few units in the last place of 7.
  EXPECT_NEAR(token.logprob, -4.0 - std::log(total), 4e-6);
}

TEST(SamplerTest, LogprobSurvivesGreatLogits) {
  const SampledToken token = Sampler().Sample({}, {}, std::vector<float>{3e38f, 1.0f, -3e38f});
  EXPECT_EQ(token.id, 0);
  EXPECT_EQ(token.logprob, 0.0f);
}

// ---- order of the steps ----------------------------------------------------------------------

TEST(SamplerOrderTest, BansOutweighBias) {
  SamplingParams params;
  params.logit_bias = {{1, 100.0f}, {2, 90.0f}};
  params.banned_token_ids = {1};
  EXPECT_EQ(SampleId(params, {}, {0, 0, 0}), 2);
}

TEST(SamplerOrderTest, SuppressedTokensAreNotDrawn) {
  const std::vector<int32_t> suppressed = {2};
  EXPECT_EQ(SampleId({}, {.suppressed = suppressed}, {1, 2, 3}), 1);
}

TEST(SamplerOrderTest, BiasComesBeforeTheRepetitionPenalty) {
  // (1 - 3) * 4 = -8; the other way round 1 / 4 - 3 = -2.75.
  SamplingParams params;
  params.repetition_penalty = 4.0f;
  params.logit_bias = {{0, -3.0f}};
  const std::vector<int32_t> prompt = {0};
  EXPECT_EQ(SampleId(params, {.prompt = prompt}, {1.0f, -5.0f}), 1);
}

TEST(SamplerOrderTest, RepetitionComesBeforeFrequency) {
  // 4 / 2 - 1.5 = 0.5; the other way round (4 - 1.5) / 2 = 1.25.
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  params.frequency_penalty = 1.5f;
  const std::vector<int32_t> output = {0};
  EXPECT_EQ(SampleId(params, {.output = output}, {4.0f, 0.9f}), 1);
  EXPECT_EQ(SampleId(params, {.output = output}, {4.0f, 0.4f}), 0);
}

TEST(SamplerOrderTest, FrequencyAndPresenceLookAtTheOutputOnly) {
  SamplingParams params;
  params.frequency_penalty = 2.0f;
  params.presence_penalty = 2.0f;
  const std::vector<int32_t> seen = {0, 0};
  EXPECT_EQ(SampleId(params, {.prompt = seen}, {4.0f, 0.0f}), 0);
  EXPECT_EQ(SampleId(params, {.output = seen}, {4.0f, 0.0f}), 1);
}

TEST(SamplerOrderTest, RepetitionLooksAtPromptAndOutputWithinItsWindow) {
  SamplingParams params;
  params.repetition_penalty = 10.0f;
  const std::vector<int32_t> prompt = {0, 2};
  const std::vector<int32_t> output = {2};
  const SamplingState state = {.prompt = prompt, .output = output};
  EXPECT_EQ(SampleId(params, state, {4, 1, 0}), 1);
  params.repetition_window = 2;
  EXPECT_EQ(SampleId(params, state, {4, 1, 0}), 0);
  params.repetition_window = 3;
  EXPECT_EQ(SampleId(params, state, {4, 1, 0}), 1);
}

// Ids that come up over many seeds.
std::set<int32_t> Support(SamplingParams params, const std::vector<float>& logits) {
  std::set<int32_t> ids;
  for (params.seed = 0; params.seed < 3000; ++params.seed) ids.insert(SampleId(params, {}, logits));
  return ids;
}

std::vector<float> Logs(const std::vector<float>& probabilities) {
  std::vector<float> logits;
  for (const float p : probabilities) logits.push_back(std::log(p));
  return logits;
}

TEST(SamplerOrderTest, TemperatureComesBeforeTopP) {
  // At temperature 1 0.6 alone reaches 0.55; at 2 the shares are 0.46, 0.32, 0.22.
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_p = 0.55f;
  EXPECT_EQ(Support(params, Logs({0.6f, 0.28f, 0.12f})), (std::set<int32_t>{0}));
  params.temperature = 2.0f;
  EXPECT_EQ(Support(params, Logs({0.6f, 0.28f, 0.12f})), (std::set<int32_t>{0, 1}));
}

TEST(SamplerOrderTest, TopKComesBeforeTopPWhichWorksOnWhatIsLeft) {
  // Of two tokens left the first has 0.4 / 0.7 = 0.57 and reaches 0.5 alone; of all it has 0.4.
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_p = 0.5f;
  EXPECT_EQ(Support(params, Logs({0.4f, 0.3f, 0.3f})), (std::set<int32_t>{0, 1}));
  params.top_k = 2;
  EXPECT_EQ(Support(params, Logs({0.4f, 0.3f, 0.3f})), (std::set<int32_t>{0}));
}

TEST(SamplerOrderTest, TypicalDropsTheObviousTokenAndMinPCountsFromWhatIsLeft) {
  // The entropy is 2.17 nats; -log p of 0.1 is 0.13 away, of 0.2 0.56, of 0.001 4.7.
  const std::vector<float> logits =
      Logs({0.2f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.001f});
  SamplingParams params;
  params.temperature = 1.0f;
  params.typical_p = 0.75f;
  EXPECT_EQ(Support(params, logits), (std::set<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  params.min_p = 0.9f;  // of 0.1, the greatest left; of 0.2 nothing else would be
  EXPECT_EQ(Support(params, logits), (std::set<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(SamplerOrderTest, EqualsAreTakenFromTheLowestId) {
  SamplingParams params;
  EXPECT_EQ(SampleId(params, {}, {1, 7, 7, 7}), 1);
  params.temperature = 1.0f;
  params.top_k = 2;
  EXPECT_EQ(Support(params, {1, 7, 7, 7}), (std::set<int32_t>{1, 2}));
  params.top_k = 0;
  params.top_p = 0.5f;
  EXPECT_EQ(Support(params, {7, 7, 7, 7}), (std::set<int32_t>{0, 1}));
  params.top_p = 1.0f;
  params.typical_p = 0.5f;
  EXPECT_EQ(Support(params, {7, 7, 7, 7}), (std::set<int32_t>{0, 1}));
}

// ---- a draw is a function of its arguments ---------------------------------------------------

TEST(SamplerTest, ADrawDoesNotDependOnWhatTheSamplerDidBefore) {
  SamplingParams params;
  params.temperature = 1.2f;
  params.top_p = 0.97f;
  params.repetition_penalty = 1.1f;
  params.frequency_penalty = 0.3f;
  const std::vector<int32_t> output = {3, 5, 3};
  std::vector<int32_t> alone;
  for (uint32_t i = 0; i < 200; ++i) {
    params.seed = i;
    alone.push_back(SampleId(params, {.output = output, .position = i}, RandomLogits(300, i)));
  }
  Sampler shared;
  for (uint32_t i = 200; i-- > 0;) {
    // Another request of another vocabulary between.
    shared.Sample({.temperature = 1, .top_k = 3, .presence_penalty = 1, .banned_token_ids = {9}},
                  {.output = output}, RandomLogits(500 + i, 1000 + i));
    params.seed = i;
    EXPECT_EQ(shared.Sample(params, {.output = output, .position = i}, RandomLogits(300, i)).id,
              alone[i]);
  }
  EXPECT_GT(std::set<int32_t>(alone.begin(), alone.end()).size(), 50u);
}

TEST(SamplerTest, ChoicesOfOneRequestDiffer) {
  const std::vector<float> logits(1000, 0.0f);
  std::set<int32_t> ids;
  for (uint32_t choice = 0; choice < 20; ++choice) {
    ids.insert(SampleId({.temperature = 1, .seed = 5}, {.choice = choice}, logits));
  }
  EXPECT_GT(ids.size(), 15u);
}

// ---- logits that are no numbers --------------------------------------------------------------

TEST(SamplerTest, NanNeverWinsAndNothingLeftIsDefined) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_p = 0.9f;
    params.typical_p = 0.9f;
    params.top_k = 3;
    const SampledToken token =
        Sampler().Sample(params, {}, std::vector<float>{nan, -1, nan, -kInfinity});
    EXPECT_EQ(token.id, 1);
    EXPECT_EQ(token.logprob, 0.0f);
    EXPECT_EQ(SampleId(params, {}, {nan, kInfinity, 5}), 1);
    params.banned_token_ids = {0, 1};
    const SampledToken none = Sampler().Sample(params, {}, std::vector<float>{nan, 3, nan, nan});
    EXPECT_EQ(none.id, 2);
    EXPECT_EQ(none.logprob, -kInfinity);
    params.banned_token_ids = {0, 1, 2, 3};
    EXPECT_EQ(SampleId(params, {}, {1, 2, 3, 4}), 0);
  }
}

TEST(SamplerTest, ExtremeParametersStayInRange) {
  std::vector<float> logits = RandomLogits(100, 4);
  logits[7] = kInfinity;
  logits[8] = -kInfinity;
  logits[9] = 3.4e38f;
  const std::vector<int32_t> odd = {-1, 7, 1 << 30, 8, 9};
  for (const float temperature : {1e-45f, 1e-6f, 1e-3f, 100.0f}) {
    for (const float penalty : {1e-30f, 10.0f}) {
      const SamplingParams params = {.temperature = temperature,
                                     .top_k = 0xFFFFFFFF,
                                     .top_p = 1e-30f,
                                     .min_p = 1,
                                     .typical_p = 1e-30f,
                                     .repetition_penalty = penalty,
                                     .frequency_penalty = 2};
      const SampledToken token =
          Sampler().Sample(params, {.prompt = odd, .output = odd, .suppressed = odd}, logits);
      EXPECT_GE(token.id, 0);
      EXPECT_LT(token.id, 100);
      EXPECT_FALSE(std::isnan(token.logprob));
    }
  }
}

// ---- validation ------------------------------------------------------------------------------

TEST(SamplingParamsTest, DefaultsAndLimitsAreValid) {
  EXPECT_TRUE(SamplingParams{}.Validate(100).ok());
  const SamplingParams limits = {.temperature = 100,
                                 .top_k = 0xFFFFFFFF,
                                 .top_p = 1,
                                 .min_p = 1,
                                 .typical_p = 1,
                                 .repetition_penalty = 10,
                                 .repetition_window = 1 << 30,
                                 .frequency_penalty = -2,
                                 .presence_penalty = 2,
                                 .logit_bias = {{99, -100.0f}, {0, 100.0f}},
                                 .banned_token_ids = {0, 99}};
  EXPECT_TRUE(limits.Validate(100).ok()) << limits.Validate(100);
}

TEST(SamplingParamsTest, ErrorsNameFieldValueAndRange) {
  const auto expect = [](const SamplingParams& params, const std::string& what) {
    const absl::Status status = params.Validate(100);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect({.temperature = -0.5f}, "temperature is -0.5; must be at least 0 and at most 100");
  expect({.temperature = nan}, "temperature is nan");
  expect({.temperature = kInfinity}, "temperature is inf");
  expect({.top_p = 0}, "top_p is 0; must be greater than 0 and at most 1");
  expect({.top_p = 1.5f}, "top_p is 1.5");
  expect({.top_p = nan}, "top_p is nan");
  expect({.min_p = -1}, "min_p is -1; must be at least 0");
  expect({.min_p = 2}, "min_p is 2");
  expect({.typical_p = 0}, "typical_p is 0");
  expect({.repetition_penalty = 0}, "repetition_penalty is 0; must be greater than 0");
  expect({.repetition_penalty = 11}, "at most 10");
  expect({.repetition_window = -2}, "repetition_window is -2");
  expect({.frequency_penalty = 2.5f},
         "frequency_penalty is 2.5; must be at least -2 and at most 2");
  expect({.presence_penalty = -3}, "presence_penalty is -3");
  expect({.logit_bias = {{100, 1.0f}}}, "logit_bias names token 100; ids are 0 to 99");
  expect({.logit_bias = {{5, 101.0f}}}, "logit_bias of token 5 is 101");
  expect({.logit_bias = {{5, nan}}}, "logit_bias of token 5 is nan");
  expect({.banned_token_ids = {0xFFFFFFFF}}, "banned_token_ids names token 4294967295");
  expect({.banned_token_ids = std::vector<uint32_t>(101, 1)}, "banned_token_ids has 101 entries");
}

}  // namespace
}  // namespace strata
