#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cache/layout/kv_basis.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/reference/linear_reference.h"
#include "tests/kernels/linear_testing.h"

namespace strata {
namespace {

using testing::GuardedFloats;
using testing::Random;

constexpr double kUnit = 0x1p-24;  // half the distance of neighbouring floats around 1
constexpr double kHalfUnit = 0x1p-11;
constexpr Half kUntouched = 0x5aa5;

class LinearSmallTest : public ::testing::TestWithParam<Isa> {
 protected:
  ThreadPool pool_{2};
  std::unique_ptr<LinearOps> linear_ = MakeCpuLinear(GetParam(), &pool_);
  std::unique_ptr<LinearOps> reference_ = MakeReferenceLinear();
};
INSTANTIATE_TEST_SUITE_P(All, LinearSmallTest, ::testing::ValuesIn(testing::AvailableIsas()),
                         [](const ::testing::TestParamInfo<Isa>& isa) {
                           return std::string(IsaName(isa.param));
                         });

// One step's inputs and pages for RopeAppend.
struct RopeCase {
  RopeAppendArgs args;
  std::vector<float> qkv, q_norm, k_norm, frequency, k_scale;
  std::vector<int32_t> positions;

  RopeCase(int32_t rows, int32_t query_heads, int32_t kv_heads, int32_t dim, int32_t rope_dim,
           uint64_t seed) {
    Random random(seed);
    qkv = random.Floats(size_t{1} * rows * (query_heads + 2 * kv_heads) * dim, 2.0f);
    q_norm = random.Floats(dim);
    k_norm = random.Floats(dim);
    for (int32_t i = 0; i < rope_dim / 2; ++i) {
      frequency.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / rope_dim)));
    }
    for (int32_t i = 0; i < kv_heads * dim; ++i) {
      k_scale.push_back(std::exp2(2 * random.Float()));
    }
    for (int32_t r = 0; r < rows; ++r) positions.push_back(r < 2 ? r : 100 + 37 * r);
    args.rows = rows;
    args.query_heads = query_heads;
    args.kv_heads = kv_heads;
    args.head_dim = dim;
    args.qkv = qkv.data();
    args.positions = positions.data();
    args.norm_epsilon = 1e-5f;
    args.rope.dim = rope_dim;
    args.rope.frequency = frequency.data();
  }
  RopeCase(const RopeCase&) = delete;

  PageFormat page() const { return {KvKind::kF16, KvKind::kF16, args.kv_heads, args.head_dim}; }
};

// What RopeAppend wrote.
struct RopeResult {
  std::vector<float> q;
  std::vector<std::vector<Half>> pages;

  // Rows go to the pages in turn, each to another token.
  RopeResult(LinearOps* linear, RopeAppendArgs args, const PageFormat& page)
      : q(size_t{1} * args.rows * args.query_heads * args.head_dim), pages(3) {
    for (auto& p : pages) p.assign(page.BaseBytes() / sizeof(Half), kUntouched);
    std::vector<AppendTarget> targets;
    for (int32_t r = 0; r < args.rows; ++r) {
      targets.push_back({reinterpret_cast<std::byte*>(pages[r % 3].data()), Token(r)});
    }
    GuardedFloats guarded(q.size());
    args.targets = targets.data();
    args.q = guarded.data();
    linear->RopeAppend(args);
    std::memcpy(q.data(), guarded.data(), q.size() * sizeof(float));
  }
  static int32_t Token(int32_t row) { return row / 3 * 7 % 64; }

  const float* Q(const RopeCase& c, int32_t row, int32_t head) const {
    return q.data() + (size_t{1} * row * c.args.query_heads + head) * c.args.head_dim;
  }
  // By the words of page_format.h, not by its functions.
  float K(const RopeCase& c, int32_t row, int32_t head, int32_t channel) const {
    const int32_t dim = c.args.head_dim, token = Token(row);
    return HalfToFloat(
        pages[row % 3][head * 64 * dim + token / 16 * (16 * dim) + channel * 16 + token % 16]);
  }
  float V(const RopeCase& c, int32_t row, int32_t head, int32_t channel) const {
    const int32_t dim = c.args.head_dim;
    return HalfToFloat(
        pages[row % 3][(c.args.kv_heads + head) * 64 * dim + Token(row) * dim + channel]);
  }
};

// RMS norm: the sum of squares has positive terms, so its relative error is at most one rounding an
// addition of a lane (width / 32 and 6 to join) and one a square; the root halves it; 5 more
// roundings follow.
TEST_P(LinearSmallTest, RmsNormMatchesTheReference) {
  for (const int32_t width : {1, 15, 16, 17, 64, 576, 1000}) {
    const int32_t rows = 21;
    Random random(width);
    GuardedFloats x(random.Floats(size_t{1} * rows * width, 4.0f));
    GuardedFloats weight(random.Floats(width));
    GuardedFloats y(size_t{1} * rows * width);
    std::vector<float> expected(size_t{1} * rows * width);
    reference_->RmsNorm(x.data(), weight.data(), rows, width, 1e-5f, expected.data());
    linear_->RmsNorm(x.data(), weight.data(), rows, width, 1e-5f, y.data());
    const double bound = (width / 64.0 + 9) * kUnit;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(y.data()[i], expected[i], bound * std::fabs(expected[i])) << width << " " << i;
    }
    linear_->RmsNorm(x.data(), weight.data(), rows, width, 1e-5f, x.data());
    ASSERT_EQ(std::memcmp(x.data(), y.data(), expected.size() * 4), 0) << "in place";
  }
}

// The exponential is within 3 roundings: the reduced argument, below 0.35, takes two of its own
// size; the last step of the series takes one (and one of 0.35 without FMA), the steps before less
// than one together. The sum, quotient and product add one each, and so does the reference. Below
// gate = -87 the clamp may show, in results up to 200 * 12 e^-88.
TEST_P(LinearSmallTest, SwiGluMatchesTheReference) {
  for (const int32_t width : {1, 16, 31, 1536}) {
    const int32_t rows = 20;
    Random random(width);
    std::vector<float> values = random.Floats(size_t{2} * rows * width, 12.0f);
    const float extremes[] = {0.0f, -0.0f, 87.5f, -87.5f, 88.7f, -88.7f, -200.0f, 200.0f, 1e-30f};
    for (size_t i = 0; i < std::size(extremes) && i < size_t{1} * width; ++i) {
      values[i] = extremes[i];
    }
    GuardedFloats x(values);
    GuardedFloats y(size_t{1} * rows * width);
    std::vector<float> expected(size_t{1} * rows * width);
    reference_->SwiGlu(x.data(), rows, width, expected.data());
    linear_->SwiGlu(x.data(), rows, width, y.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(y.data()[i], expected[i], 7 * kUnit * std::fabs(expected[i]) + 1e-34)
          << width << " " << i;
    }
  }
}

// Each of log2(block) levels rounds once, the factor twice; errors are at most that many roundings
// of the sum of sizes that every partial sum is below.
TEST_P(LinearSmallTest, UnrotateHeadsIsTheNormalizedHadamardOfEachBlock) {
  for (const int32_t dim : {16, 32, 48, 64, 80, 96, 112, 128, 192, 256}) {
    const int32_t rows = 19, heads = 3, block = KvBasis::HadamardBlock(dim);
    Random random(dim);
    const std::vector<float> x = random.Floats(size_t{1} * rows * heads * dim);
    GuardedFloats actual(x);
    std::vector<float> expected = x;
    reference_->UnrotateHeads(rows, heads, dim, expected.data());
    linear_->UnrotateHeads(rows, heads, dim, actual.data());
    const double roundings = std::log2(block) + 4;
    for (size_t first = 0; first < x.size(); first += block) {
      double size = 0;
      for (int32_t i = 0; i < block; ++i) size += std::fabs(x[first + i]);
      for (int32_t i = 0; i < block; ++i) {
        ASSERT_NEAR(actual.data()[first + i], expected[first + i],
                    roundings * kUnit * size / std::sqrt(block))
            << dim;
      }
    }
    // Its own inverse: H H = 1.
    linear_->UnrotateHeads(rows, heads, dim, actual.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(actual.data()[i], x[i], 2 * roundings * kUnit * block) << dim;
    }
  }
}

struct RopeShape {
  int32_t query_heads, kv_heads, dim, rope_dim;
};
constexpr RopeShape kRopeShapes[] = {{9, 3, 64, 64},   {2, 1, 16, 16}, {4, 2, 80, 20},
                                     {3, 3, 96, 96},   {2, 2, 112, 0}, {6, 2, 128, 64},
                                     {8, 1, 256, 256}, {2, 1, 64, 22}};

// A channel of q or k before the transform is within 12 roundings of its pair's size (norm, angle
// factors, rotation, scale); the transform mixes a block and adds log2(block) + 4.
TEST_P(LinearSmallTest, RopeAppendMatchesTheReference) {
  for (const RopeShape& shape : kRopeShapes) {
    for (int options = 0; options < 16; ++options) {
      RopeCase c(20, shape.query_heads, shape.kv_heads, shape.dim, shape.rope_dim, options + 1);
      c.args.rope.pairing =
          options & 1 ? RopeParams::Pairing::kHalves : RopeParams::Pairing::kInterleaved;
      c.args.rotate_k = (options & 2) != 0;
      c.args.rotate_v = (options & 4) != 0;
      if (options & 8) {
        c.args.q_norm = c.q_norm.data();
        c.args.k_norm = c.k_norm.data();
        c.args.k_scale = c.k_scale.data();
        c.args.rope.magnitude = 1.25f;
      }
      SCOPED_TRACE(::testing::Message() << "dim " << shape.dim << " options " << options);
      const RopeResult expected(reference_.get(), c.args, c.page());
      const RopeResult actual(linear_.get(), c.args, c.page());

      // Values are below 2 (or, normed, dim^1/2 times the weight), times magnitude and a scale of
      // at most 4, summed over a block by the transform and divided by the root of its size.
      const int32_t block = KvBasis::HadamardBlock(shape.dim);
      const double largest = (options & 8 ? std::sqrt(shape.dim) * 1.25 * 4 : 2) * 1.5;
      const double bound = (16 + std::log2(block)) * kUnit * largest * std::sqrt(block);
      for (size_t i = 0; i < expected.q.size(); ++i) {
        ASSERT_NEAR(actual.q[i], expected.q[i], bound / std::sqrt(shape.dim)) << i;
      }
      for (size_t p = 0; p < expected.pages.size(); ++p) {
        for (size_t i = 0; i < expected.pages[p].size(); ++i) {
          const Half a = actual.pages[p][i], e = expected.pages[p][i];
          if (e == kUntouched) {
            ASSERT_EQ(a, e) << "written outside of the rows' tokens";
            continue;
          }
          // Both rounded to half: at most one place apart.
          const double place = 2 * kHalfUnit * std::fabs(HalfToFloat(e)) + 0x1p-24;
          ASSERT_NEAR(HalfToFloat(a), HalfToFloat(e), bound + place) << p << " " << i;
        }
      }
    }
  }
}

// Without a transform V is the input rounded to nearest even, whatever its size.
TEST_P(LinearSmallTest, StoredHalvesAreRoundedToNearestEven) {
  const float special[] = {1.0f + 0x1p-11f,
                           1.0f + 3 * 0x1p-11f,
                           -1.0f - 0x1p-11f,
                           0x1p-24f,
                           0x1p-25f,
                           3 * 0x1p-25f,
                           5 * 0x1p-25f,
                           0x1.ffcp-15f,
                           0x1.ffep-15f,
                           -0.0f,
                           65504.0f,
                           65519.0f,
                           65520.0f,
                           -1e9f,
                           1e-9f,
                           INFINITY};
  RopeCase c(1, 1, 1, 16, 16, 1);
  std::copy(std::begin(special), std::end(special), c.qkv.begin() + 32);
  const RopeResult result(linear_.get(), c.args, c.page());
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(result.V(c, 0, 0, i), HalfToFloat(FloatToHalf(special[i]))) << special[i];
  }
}

TEST_P(LinearSmallTest, RopeAnglesFollowWhatChangedInPlace) {
  RopeCase c(3, 2, 1, 32, 32, 5);
  const auto differs_from_fresh = [&] {
    const RopeResult kept(linear_.get(), c.args, c.page());
    const RopeResult fresh(MakeCpuLinear(GetParam(), &pool_).get(), c.args, c.page());
    return kept.q != fresh.q || kept.pages != fresh.pages;
  };
  EXPECT_FALSE(differs_from_fresh());
  const RopeResult before(linear_.get(), c.args, c.page());
  c.positions[2] += 1;
  EXPECT_FALSE(differs_from_fresh());
  EXPECT_NE(RopeResult(linear_.get(), c.args, c.page()).q, before.q);
  c.frequency[3] *= 1.5f;
  EXPECT_FALSE(differs_from_fresh());
  c.args.rope.pairing = RopeParams::Pairing::kHalves;
  EXPECT_FALSE(differs_from_fresh());
  c.args.rope.magnitude = 0.5f;
  EXPECT_FALSE(differs_from_fresh());
  c.args.rope.dim = 16;
  EXPECT_FALSE(differs_from_fresh());
  c.args.rows = 2;
  EXPECT_FALSE(differs_from_fresh());
}

TEST_P(LinearSmallTest, RowsHaveTheSameBitsInAnyCompanyAndOnAnyThreads) {
  const int32_t rows = 50;
  RopeCase c(rows, 6, 2, 64, 64, 3);
  c.args.rotate_k = c.args.rotate_v = true;
  c.args.k_scale = c.k_scale.data();
  const RopeResult all(linear_.get(), c.args, c.page());
  const int32_t width = 6 * 64;
  const std::vector<float> x = Random(2).Floats(size_t{2} * rows * width);
  const std::vector<float> weight = Random(3).Floats(width);
  std::vector<float> normed(size_t{1} * rows * width), gated(normed.size()), turned = normed;
  linear_->RmsNorm(x.data(), weight.data(), rows, width, 1e-6f, normed.data());
  linear_->SwiGlu(x.data(), rows, width, gated.data());
  std::copy_n(x.begin(), turned.size(), turned.begin());
  linear_->UnrotateHeads(rows, 6, 64, turned.data());

  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const auto linear = MakeCpuLinear(GetParam(), &pool);
    for (const int32_t count : {1, 2, 15, 16, 17, 33}) {
      const int32_t skipped = rows - count;
      const auto same = [&](const std::vector<float>& some, const std::vector<float>& whole) {
        return std::memcmp(some.data(), whole.data() + size_t{1} * skipped * width,
                           some.size() * 4) == 0;
      };
      std::vector<float> y(size_t{1} * count * width);
      linear->RmsNorm(x.data() + size_t{1} * skipped * width, weight.data(), count, width, 1e-6f,
                      y.data());
      EXPECT_TRUE(same(y, normed));
      linear->SwiGlu(x.data() + size_t{2} * skipped * width, count, width, y.data());
      EXPECT_TRUE(same(y, gated));
      std::copy_n(x.begin() + size_t{1} * skipped * width, y.size(), y.begin());
      linear->UnrotateHeads(count, 6, 64, y.data());
      EXPECT_TRUE(same(y, turned));

      // The first rows: they go to the same tokens.
      RopeAppendArgs args = c.args;
      args.rows = count;
      const RopeResult some(linear.get(), args, c.page());
      EXPECT_EQ(std::memcmp(some.q.data(), all.q.data(), some.q.size() * 4), 0);
      for (size_t p = 0; p < some.pages.size(); ++p) {
        for (size_t i = 0; i < some.pages[p].size(); ++i) {
          if (some.pages[p][i] != kUntouched) {
            ASSERT_EQ(some.pages[p][i], all.pages[p][i]);
          }
        }
      }
    }
  }
}

// B1: q'.k' = q.k. The stored k' is rounded to half, one unit of each product; float adds roundings
// of a sum of dim products of numbers that went through the transform.
TEST_P(LinearSmallTest, TheBasisKeepsScores) {
  for (const RopeShape& shape : kRopeShapes) {
    RopeCase c(1, shape.query_heads, shape.kv_heads, shape.dim, shape.rope_dim, 9);
    const RopeResult plain(reference_.get(), c.args, c.page());
    c.args.rotate_k = true;
    c.args.k_scale = c.k_scale.data();
    const RopeResult based(linear_.get(), c.args, c.page());
    const int32_t group = shape.query_heads / shape.kv_heads;
    for (int32_t h = 0; h < shape.query_heads; ++h) {
      double expected = 0, actual = 0, bound = 0;
      for (int32_t i = 0; i < shape.dim; ++i) {
        const double q = plain.Q(c, 0, h)[i], k = plain.K(c, 0, h / group, i);
        const double q2 = based.Q(c, 0, h)[i], k2 = based.K(c, 0, h / group, i);
        expected += q * k;
        actual += q2 * k2;
        bound += kHalfUnit * (std::fabs(q * k) + std::fabs(q2 * k2));
      }
      // q' and k' in float: 24 roundings of at most 2 * 4 * dim^1/2 a channel, by the other side.
      EXPECT_NEAR(actual, expected, bound + 24 * kUnit * 16 * shape.dim) << shape.dim << " " << h;
    }
  }
}

// The oracle against complex multiplication, and its pages against the words of page_format.h.
TEST(LinearReferenceTest, RopeAppendTurnsPairsAndStoresByTheLayout) {
  const auto reference = MakeReferenceLinear();
  for (const bool halves : {false, true}) {
    RopeCase c(5, 4, 2, 32, 12, 4);
    c.args.rope.pairing = halves ? RopeParams::Pairing::kHalves : RopeParams::Pairing::kInterleaved;
    const RopeResult result(reference.get(), c.args, c.page());
    for (int32_t r = 0; r < c.args.rows; ++r) {
      const float* row = c.qkv.data() + size_t{1} * r * 8 * 32;
      const auto expected = [&](int32_t head, int32_t channel) {
        const float* x = row + head * 32;
        if (channel >= 12) return static_cast<double>(x[channel]);
        const int32_t pair = halves ? channel % 6 : channel / 2;
        const bool second = halves ? channel >= 6 : channel % 2 == 1;
        const std::complex<double> z(x[halves ? pair : 2 * pair],
                                     x[halves ? pair + 6 : 2 * pair + 1]);
        const auto turned = z * std::polar(1.0, c.positions[r] * double{c.frequency[pair]});
        return second ? turned.imag() : turned.real();
      };
      for (int32_t i = 0; i < 32; ++i) {
        for (int32_t h = 0; h < 4; ++h) {
          EXPECT_NEAR(result.Q(c, r, h)[i], expected(h, i) / std::sqrt(32.0), 1e-6);
        }
        for (int32_t h = 0; h < 2; ++h) {
          // Below 4: half a place of a half is at most 2^-10.
          EXPECT_NEAR(result.K(c, r, h, i), expected(4 + h, i), 0x1p-10);
          EXPECT_NEAR(result.V(c, r, h, i), row[(6 + h) * 32 + i], 0x1p-10);
        }
      }
    }
  }
}

// The transform's matrix, from its recursive definition: H_2n = [[H, H], [H, -H]].
TEST(LinearReferenceTest, UnrotateHeadsIsTheRecursiveHadamard) {
  const auto reference = MakeReferenceLinear();
  std::vector<std::vector<int>> h = {{1}};
  while (h.size() < 32) {
    const size_t n = h.size();
    std::vector<std::vector<int>> next(2 * n, std::vector<int>(2 * n));
    for (size_t i = 0; i < 2 * n; ++i) {
      for (size_t j = 0; j < 2 * n; ++j) {
        next[i][j] = h[i % n][j % n] * (i >= n && j >= n ? -1 : 1);
      }
    }
    h = next;
  }
  const std::vector<float> x = Random(1).Floats(96);  // three blocks of 32
  std::vector<float> y = x;
  reference->UnrotateHeads(1, 1, 96, y.data());
  for (int b = 0; b < 3; ++b) {
    for (int i = 0; i < 32; ++i) {
      double sum = 0;
      for (int j = 0; j < 32; ++j) sum += h[i][j] * static_cast<double>(x[32 * b + j]);
      EXPECT_NEAR(y[32 * b + i], sum / std::sqrt(32.0), 1e-6);
    }
  }
}

TEST(LinearBackendTest, BackendsAreNamedAndWrongOptionsRefused) {
  EXPECT_EQ(CreateReferenceBackend().name, "reference");
  for (Isa isa : testing::AvailableIsas()) {
    CpuBackendOptions options;
    options.threads = 2;
    options.force_isa = std::string(IsaName(isa));
    auto backend = CreateCpuBackend(options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_EQ(backend->name, "cpu/" + options.force_isa);
    EXPECT_EQ(backend->pool->threads(), 2);
    EXPECT_TRUE(backend->linear && backend->codec && backend->attention);
  }
  CpuBackendOptions options;
  options.force_isa = "sse2";
  EXPECT_EQ(CreateCpuBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.force_isa = "scalar";
  for (const int threads : {-1, 1025}) {
    options.threads = threads;
    EXPECT_EQ(CreateCpuBackend(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace strata
