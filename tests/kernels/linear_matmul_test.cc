#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/linear_dequantize.h"
#include "kernels/reference/linear_reference.h"
#include "tests/kernels/linear_testing.h"

namespace strata {
namespace {

using testing::GuardedFloats;
using testing::IsPlain;
using testing::kAllWeightTypes;
using testing::MakeWeights;
using testing::Random;
using testing::TestWeights;

constexpr double kUnit = 0x1p-24;  // half the distance of neighbouring floats around 1

struct Case {
  WeightType type;
  Isa isa;
};

std::vector<Case> Cases(bool with_plain) {
  std::vector<Case> cases;
  for (Isa isa : testing::AvailableIsas()) {
    for (WeightType type : kAllWeightTypes) {
      if (with_plain || !IsPlain(type)) cases.push_back({type, isa});
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return std::string(IsaName(info.param.isa)) + "_" + InfoOf(info.param.type).name;
}

// One row of activations as the product sees it: by groups of 32, x = q max|x| / 32512 with q
// rounded to nearest even; plain weights see x itself. `slack` is how far that may be from x: half
// a step.
struct SeenRow {
  std::vector<double> x;
  std::vector<double> slack;
};

SeenRow See(const float* x, int32_t count, bool plain) {
  constexpr float kSteps = 32512.0f;  // 255 * 127 + 127
  SeenRow seen{std::vector<double>(x, x + count), std::vector<double>(count, 0.0)};
  if (plain) return seen;
  for (int32_t g = 0; g < count; g += 32) {
    float max = 0;
    for (int32_t i = g; i < g + 32; ++i) max = std::max(max, std::fabs(x[i]));
    const float inverse = max > 0 ? kSteps / max : 0.0f;
    const double step = static_cast<double>(max * (1.0f / kSteps));
    for (int32_t i = g; i < g + 32; ++i) {
      seen.x[i] = step * static_cast<double>(std::nearbyint(x[i] * inverse));
      // Step and inverse are rounded, so a tie may fall either way by a few units of the last
      // place.
      seen.slack[i] = step * (0.5 + kSteps * 4 * kUnit);
    }
  }
  return seen;
}

// What rounding may do to a sum of products in float: a group's term is rounded in its scale, its
// two parts are added with at most two roundings each; so at most 4 roundings a group and 8 at the
// ends, each of at most kUnit times the sum of all parts' sizes. Plain: 2 roundings an input.
double RoundingBound(const TestWeights& weights, const SeenRow& row) {
  const auto inputs = static_cast<double>(row.x.size());
  const double roundings = IsPlain(weights.source.type) ? 2 * inputs + 8 : inputs / 8 + 8;
  double sum = 0;
  for (double x : row.x) sum += std::fabs(x);
  return roundings * kUnit * weights.part_bound * sum;
}

class LinearMatmulTest : public ::testing::TestWithParam<Case> {
 protected:
  ThreadPool pool_{2};
  std::unique_ptr<LinearOps> linear_ = MakeCpuLinear(GetParam().isa, &pool_);
};
INSTANTIATE_TEST_SUITE_P(All, LinearMatmulTest, ::testing::ValuesIn(Cases(true)), CaseName);

class LinearQuantizedTest : public LinearMatmulTest {};
INSTANTIATE_TEST_SUITE_P(All, LinearQuantizedTest, ::testing::ValuesIn(Cases(false)), CaseName);

// Against the definition: exact up to the roundings of RoundingBound given the quantized
// activations, and within half a quantization step an input of the exact product.
TEST_P(LinearMatmulTest, MatchesTheDefinition) {
  const WeightType type = GetParam().type;
  const int32_t block = InfoOf(type).block_values;
  for (const int32_t in : {std::max(block, 32), IsPlain(type) ? 75 : 3 * block}) {
    for (const int32_t out : {1, 16, 37}) {
      const TestWeights weights = MakeWeights(type, out, in, 7);
      const auto matrix = linear_->Prepare({{weights.source}});
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      const int32_t rows = 31;  // every size of a row group
      Random random(in + out);
      GuardedFloats x(random.Floats(size_t{1} * rows * in, 3.0f));
      GuardedFloats y(size_t{1} * rows * out);
      linear_->Matmul(**matrix, x.data(), rows, nullptr, false, y.data());
      std::vector<float> w(in);
      for (int32_t r = 0; r < rows; ++r) {
        const float* x_row = x.data() + size_t{1} * r * in;
        const SeenRow seen = See(x_row, in, IsPlain(type));
        const double rounding = RoundingBound(weights, seen);
        for (int32_t o = 0; o < out; ++o) {
          DequantizeRow(type, weights.source.data + RowBytes(type, in) * o, in, w.data());
          double as_seen = 0, exact = 0, slack = 0;
          for (int32_t i = 0; i < in; ++i) {
            as_seen += w[i] * seen.x[i];
            exact += static_cast<double>(w[i]) * x_row[i];
            slack += std::fabs(w[i]) * seen.slack[i];
          }
          const double actual = y.data()[size_t{1} * r * out + o];
          ASSERT_NEAR(actual, as_seen, rounding) << in << " " << out << " " << r << " " << o;
          ASSERT_NEAR(actual, exact, rounding + slack) << in << " " << out << " " << r << " " << o;
        }
      }
    }
  }
}

// Extreme codes and activations: every product at its largest, so that a step that saturated or
// overflowed would show.
TEST_P(LinearQuantizedTest, LargestCodesDoNotSaturate) {
  const WeightType type = GetParam().type;
  const int32_t in = 512, out = 16;
  for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
    TestWeights weights = MakeWeights(type, out, in, 3);
    const TestWeights parameters = weights;
    const WeightTypeInfo& info = InfoOf(type);
    // Codes and sub-scales are set to the fill; the half-precision parameters stay.
    std::fill(weights.bytes.begin(), weights.bytes.end(), static_cast<std::byte>(fill));
    const bool two = type == WeightType::kQ4_1 || type == WeightType::kQ5_1 ||
                     type == WeightType::kQ4_K || type == WeightType::kQ5_K;
    const size_t offset = type == WeightType::kQ6_K ? 208 : 0;
    for (size_t i = 0; i < weights.bytes.size(); i += info.block_bytes) {
      std::memcpy(weights.bytes.data() + i + offset, parameters.bytes.data() + i + offset,
                  two ? 4 : 2);
    }
    weights.source.data = weights.bytes.data();
    const auto matrix = linear_->Prepare({{weights.source}});
    ASSERT_TRUE(matrix.ok());
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> x(in, sign), y(out), w(in);
      linear_->Matmul(**matrix, x.data(), 1, nullptr, false, y.data());
      const SeenRow seen = See(x.data(), in, false);
      for (int32_t o = 0; o < out; ++o) {
        DequantizeRow(type, weights.source.data + RowBytes(type, in) * o, in, w.data());
        double as_seen = 0;
        for (int32_t i = 0; i < in; ++i) as_seen += w[i] * seen.x[i];
        ASSERT_NEAR(y[o], as_seen, RoundingBound(weights, seen)) << fill << " " << o;
      }
    }
  }
}

TEST_P(LinearMatmulTest, RowsHaveTheSameBitsInAnyCompanyAndOnAnyThreads) {
  const WeightType type = GetParam().type;
  const int32_t in = IsPlain(type) ? 75 : InfoOf(type).block_values, out = 37, rows = 200;
  const TestWeights weights = MakeWeights(type, out, in, 11);
  Random random(5);
  const std::vector<float> x = random.Floats(size_t{1} * rows * in);
  const auto matrix = linear_->Prepare({{weights.source}});
  ASSERT_TRUE(matrix.ok());
  std::vector<float> all(size_t{1} * rows * out);
  linear_->Matmul(**matrix, x.data(), rows, nullptr, false, all.data());
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const auto linear = MakeCpuLinear(GetParam().isa, &pool);
    const auto same = linear->Prepare({{weights.source}});
    ASSERT_TRUE(same.ok());
    for (int32_t count = 1; count <= 64; ++count) {
      const int32_t first = rows - count;  // the last rows: other places in their groups
      std::vector<float> some(size_t{1} * count * out);
      linear->Matmul(**same, x.data() + size_t{1} * first * in, count, nullptr, false, some.data());
      ASSERT_EQ(std::memcmp(some.data(), all.data() + size_t{1} * first * out, some.size() * 4), 0)
          << count << " rows, " << threads << " threads";
    }
  }
}

TEST_P(LinearMatmulTest, BiasAndAccumulateAdd) {
  const WeightType type = GetParam().type;
  const int32_t in = 512, out = 21, rows = 3;
  const TestWeights weights = MakeWeights(type, out, in, 13);
  Random random(6);
  const std::vector<float> x = random.Floats(rows * in);
  GuardedFloats bias(random.Floats(out));
  const std::vector<float> before = random.Floats(rows * out);
  const auto matrix = linear_->Prepare({{weights.source}});
  ASSERT_TRUE(matrix.ok());
  std::vector<float> plain(rows * out), sum = before, biased(rows * out);
  linear_->Matmul(**matrix, x.data(), rows, nullptr, false, plain.data());
  linear_->Matmul(**matrix, x.data(), rows, bias.data(), false, biased.data());
  linear_->Matmul(**matrix, x.data(), rows, bias.data(), true, sum.data());
  for (int32_t i = 0; i < rows * out; ++i) {
    EXPECT_EQ(biased[i], plain[i] + bias.data()[i % out]);
    EXPECT_EQ(sum[i], before[i] + biased[i]);
  }
}

TEST_P(LinearMatmulTest, ActivationsThatAreNotFiniteShowInTheirRowAlone) {
  const int32_t in = 512, out = 16;
  const TestWeights weights = MakeWeights(GetParam().type, out, in, 17);
  const auto matrix = linear_->Prepare({{weights.source}});
  ASSERT_TRUE(matrix.ok());
  for (const float bad : {NAN, INFINITY}) {
    std::vector<float> x = Random(8).Floats(3 * in), y(3 * out);
    x[in + 40] = bad;
    linear_->Matmul(**matrix, x.data(), 3, nullptr, false, y.data());
    for (int32_t o = 0; o < out; ++o) {
      EXPECT_TRUE(std::isfinite(y[o]));
      EXPECT_FALSE(std::isfinite(y[out + o]));
      EXPECT_TRUE(std::isfinite(y[2 * out + o]));
    }
  }
}

TEST_P(LinearMatmulTest, ZeroAndTinyActivationsGiveTinyResults) {
  const int32_t in = 512, out = 16;
  const TestWeights weights = MakeWeights(GetParam().type, out, in, 17);
  const auto matrix = linear_->Prepare({{weights.source}});
  ASSERT_TRUE(matrix.ok());
  for (const float tiny : {0.0f, 1e-45f, 1e-38f, 1e-30f}) {
    std::vector<float> x(in, tiny), y(out, 1.0f);
    linear_->Matmul(**matrix, x.data(), 1, nullptr, false, y.data());
    // |y| <= in * |w| * tiny, a quantized group rounded up to a step of 2^-149 / 127.
    for (float v : y) EXPECT_LE(std::fabs(v), in * weights.part_bound * (1.01 * tiny + 2e-45));
  }
}

// Every finite half and bfloat16, subnormal ones too, times one is itself.
TEST(LinearPlainTest, EveryFiniteSixteenBitValueIsReadExactly) {
  ThreadPool pool(2);
  const int32_t out = 0x10000;
  std::vector<uint16_t> values(out);
  for (int32_t i = 0; i < out; ++i) values[i] = static_cast<uint16_t>(i);
  const auto* data = reinterpret_cast<const std::byte*>(values.data());
  for (Isa isa : testing::AvailableIsas()) {
    const auto linear = MakeCpuLinear(isa, &pool);
    for (const WeightType type : {WeightType::kF16, WeightType::kBF16}) {
      const WeightSource source = {type, out, 1, data};
      const auto matrix = linear->Prepare({{source}});
      ASSERT_TRUE(matrix.ok());
      std::vector<float> y(out);
      const float one = 1.0f;
      linear->Matmul(**matrix, &one, 1, nullptr, false, y.data());
      for (int32_t i = 0; i < out; ++i) {
        float value;
        DequantizeRow(type, data + 2 * i, 1, &value);
        if (std::isfinite(value)) {
          ASSERT_EQ(y[i], value) << IsaName(isa) << " " << i;
        } else {
          ASSERT_FALSE(std::isfinite(y[i])) << IsaName(isa) << " " << i;
        }
      }
    }
  }
}

// Sources of different types in one product equal the products one by one, to the bit.
TEST(LinearStackedTest, StackedSourcesEqualTheirOwnProducts) {
  ThreadPool pool(2);
  for (Isa isa : testing::AvailableIsas()) {
    const auto linear = MakeCpuLinear(isa, &pool);
    const int32_t in = 512, rows = 5;
    std::vector<TestWeights> parts;
    for (WeightType type : {WeightType::kQ4_K, WeightType::kQ6_K, WeightType::kF16,
                            WeightType::kQ4_K, WeightType::kQ8_0}) {
      parts.push_back(
          MakeWeights(type, 9 + static_cast<int32_t>(parts.size()) * 10, in, parts.size() + 1));
    }
    std::vector<WeightSource> sources;
    int32_t out = 0;
    for (const TestWeights& part : parts) {
      sources.push_back(part.source);
      out += part.source.out_features;
    }
    const auto matrix = linear->Prepare(sources);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_EQ((*matrix)->out_features(), out);
    Random random(3);
    const std::vector<float> x = random.Floats(rows * in), bias = random.Floats(out);
    std::vector<float> y(rows * out);
    linear->Matmul(**matrix, x.data(), rows, bias.data(), false, y.data());
    int32_t first = 0;
    for (const WeightSource& source : sources) {
      const auto one = linear->Prepare({{source}});
      ASSERT_TRUE(one.ok());
      std::vector<float> own(rows * source.out_features);
      linear->Matmul(**one, x.data(), rows, bias.data() + first, false, own.data());
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t o = 0; o < source.out_features; ++o) {
          ASSERT_EQ(y[r * out + first + o], own[r * source.out_features + o]);
        }
      }
      first += source.out_features;
    }
  }
}

// The oracle itself against sums in another order.
TEST(LinearReferenceTest, MatmulIsTheProductOfDequantizedWeights) {
  const auto linear = MakeReferenceLinear();
  for (WeightType type : kAllWeightTypes) {
    const int32_t in = 512, out = 5, rows = 2;
    const TestWeights weights = MakeWeights(type, out, in, 23);
    const auto matrix = linear->Prepare({{weights.source}});
    ASSERT_TRUE(matrix.ok());
    const std::vector<float> x = Random(9).Floats(rows * in);
    const std::vector<float> bias = Random(10).Floats(out);
    std::vector<float> y(rows * out, 2.0f), w(in);
    linear->Matmul(**matrix, x.data(), rows, bias.data(), true, y.data());
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t o = 0; o < out; ++o) {
        DequantizeRow(type, weights.source.data + RowBytes(type, in) * o, in, w.data());
        double sum = 2.0 + bias[o];
        for (int32_t i = in - 1; i >= 0; --i) sum += static_cast<double>(w[i]) * x[r * in + i];
        // One rounding to float; the double sums differ by far less.
        EXPECT_NEAR(y[r * out + o], sum, std::fabs(sum) * 1.01 * kUnit + 1e-10)
            << InfoOf(type).name;
      }
    }
  }
}

}  // namespace
}  // namespace strata
