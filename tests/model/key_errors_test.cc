#include "model/key_errors.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/half.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace strata {
namespace {

constexpr int32_t kTokens = 3 * kBlockTokens;
constexpr int32_t kDim = 16;

// Four layers of two query heads on one KV head; values that differ from token to token.
class KeyErrorsTest : public ::testing::Test {
 protected:
  KeyErrorsTest() : backend_(CreateReferenceBackend()) {
    config_.layers = 4;
    config_.query_heads = 2;
    config_.kv_heads = 1;
    config_.head_dim = kDim;
    auto kv = FlatKv::Create(config_.Geometry(), 1, kTokens);
    EXPECT_TRUE(kv.ok()) << kv.status();
    kv_ = *std::move(kv);
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
      for (int32_t t = 0; t < kTokens; ++t) {
        for (int32_t c = 0; c < kDim; ++c) {
          SetK(layer, t, c, 0.5f);  // the same in all tokens of a page: any bits are exact
          SetV(layer, t, c, Wave(3 * t + c));
        }
      }
    }
    for (int32_t i = 0; i < kTokens * 2 * kDim; ++i) q_.push_back(Wave(i));
  }

  static float Wave(int32_t i) { return std::sin(static_cast<float>(i) * 1.7f); }
  Half* Values(int32_t layer, int32_t t, size_t tensor) {
    return reinterpret_cast<Half*>(kv_->Page(0, layer, t / kBlockTokens) + tensor);
  }
  void SetK(int32_t layer, int32_t t, int32_t c, float x) {
    Values(layer, t, kv_->format().KHead(0))[KF16Index(kDim, t % kBlockTokens, c)] = FloatToHalf(x);
  }
  void SetV(int32_t layer, int32_t t, int32_t c, float x) {
    Values(layer, t, kv_->format().VHead(0))[VF16Index(kDim, t % kBlockTokens, c)] = FloatToHalf(x);
  }
  void RoughenK(int32_t layer, int32_t block) {
    for (int32_t t = block * kBlockTokens; t < (block + 1) * kBlockTokens; ++t) {
      for (int32_t c = 0; c < kDim; ++c) SetK(layer, t, c, Wave(5 * t + 7 * c));
    }
  }
  std::vector<float> Measure() {
    KeyErrors errors(config_, kTokens);
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
      errors.AddQueries(layer, 0, 100, q_.data());  // in pieces, as a forward pass has them
      errors.AddQueries(layer, 100, kTokens - 100, q_.data() + 100 * 2 * kDim);
    }
    const auto measured = errors.Measure(*backend_.codec, kv_.get());
    EXPECT_TRUE(measured.ok()) << measured.status();
    return *measured;
  }

  Backend backend_;
  ModelConfig config_;
  std::unique_ptr<FlatKv> kv_;
  std::vector<float> q_;  // [token][head][channel]
};

TEST_F(KeyErrorsTest, OnlyPagesBetweenTheSinkAndTheQueryCount) {
  RoughenK(0, 0);  // the sink
  RoughenK(0, 2);  // the page of every query that could read it
  RoughenK(1, 1);
  RoughenK(2, 1);
  SetK(2, 70, 3, std::numeric_limits<float>::infinity());
  const std::vector<float> errors = Measure();
  ASSERT_EQ(errors.size(), 4u);
  EXPECT_EQ(errors[0], 0);
  EXPECT_GT(errors[1], 1e-4f);
  EXPECT_EQ(errors[2], 0);  // never coded
  EXPECT_EQ(errors[3], 0);
}

// |o~ - o|^2 / |o|^2 with the values a 2-bit K reads as (page_format.h), over the queries at every
// eighth position of the later half.
TEST_F(KeyErrorsTest, IsTheRelativeErrorOfTheOutput) {
  RoughenK(1, 1);
  const auto k = [&](int32_t t, int32_t c) {
    return HalfToFloat(Values(1, t, kv_->format().KHead(0))[KF16Index(kDim, t % kBlockTokens, c)]);
  };
  const auto k_read = [&](int32_t t, int32_t c) {
    if (t / kBlockTokens != 1) return k(t, c);
    float min = k(kBlockTokens, c), max = min;
    for (int32_t i = kBlockTokens; i < 2 * kBlockTokens; ++i) {
      min = std::min(min, k(i, c));
      max = std::max(max, k(i, c));
    }
    const float cell = (max - min) / 4;
    return min + cell * (std::min(3.0f, std::floor((k(t, c) - min) / cell)) + 0.5f);
  };
  double error = 0, output = 0;
  for (int32_t position = 103; position < kTokens; position += 8) {
    for (int32_t head = 0; head < 2; ++head) {
      const float* q = q_.data() + (position * 2 + head) * kDim;
      std::vector<double> o(kDim), o_read(kDim);
      double sum = 0, sum_read = 0;
      for (int32_t t = 0; t <= position; ++t) {
        double score = 0, score_read = 0;
        for (int32_t c = 0; c < kDim; ++c) {
          score += q[c] * k(t, c);
          score_read += q[c] * (position < 128 ? k(t, c) : k_read(t, c));
        }
        sum += std::exp(score);
        sum_read += std::exp(score_read);
        for (int32_t c = 0; c < kDim; ++c) {
          const double v = HalfToFloat(
              Values(1, t, kv_->format().VHead(0))[VF16Index(kDim, t % kBlockTokens, c)]);
          o[c] += std::exp(score) * v;
          o_read[c] += std::exp(score_read) * v;
        }
      }
      for (int32_t c = 0; c < kDim; ++c) {
        error += std::pow(o_read[c] / sum_read - o[c] / sum, 2);
        output += std::pow(o[c] / sum, 2);
      }
    }
  }
  // The page's parameters are F16, which moves a cell by up to a part in 2^10.
  EXPECT_NEAR(Measure()[1] / (error / output), 1, 0.02);
}

}  // namespace
}  // namespace strata
