// The row-wise kernels against the reference backend.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "cache/layout/page_format.h"
#include "kernels/backend.h"
#include "kernels/cuda/linear_launch.h"
#include "tests/cuda/device_buffer.h"

namespace strata {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  std::vector<float> Floats(size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& x : values) x = scale * (static_cast<float>(engine_() >> 8) * 0x1p-23f - 1.0f);
    return values;
  }
  int32_t Below(int32_t limit) { return static_cast<int32_t>(engine_() % limit); }

 private:
  std::mt19937 engine_;
};

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                double relative, double absolute, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double bound = relative * std::abs(expected[i]) + absolute;
    ASSERT_LE(std::abs(double{actual[i]} - double{expected[i]}), bound) << what << ", value " << i;
  }
}

constexpr int32_t kWidths[] = {1, 4, 7, 64, 576, 1027, 2048};

// A float sum of n squares in 2048 / n-th parts: relative error below (n / 256 + 12) 2^-24; then
// five roundings.
TEST(CudaLinear, RmsNormIsTheReferences) {
  const Backend reference = CreateReferenceBackend();
  Random random(1);
  for (const int32_t width : kWidths) {
    for (const int32_t rows : {1, 3}) {
      const float epsilon = rows == 1 ? 0.5f : 1e-5f;
      const std::vector<float> x = random.Floats(size_t{1} * rows * width, 8.0f);
      const std::vector<float> weight = random.Floats(width);
      std::vector<float> expected(x.size());
      reference.linear->RmsNorm(x.data(), weight.data(), rows, width, epsilon, expected.data());
      const DeviceBuffer<float> device_weight(weight);
      DeviceBuffer<float> y(x);  // in place
      ASSERT_EQ(cuda::LaunchRmsNorm(y.data(), device_weight.data(), rows, width, epsilon, y.data(),
                                    nullptr),
                cudaSuccess);
      ExpectNear(y.Download(), expected, 0x1p-20, 0, absl::StrCat("width ", width));
    }
  }
}

// Where the pointers are not of 16 bytes, loads are narrow and the bits are the same.
TEST(CudaLinear, RmsNormHasOneOrderOfAddition) {
  Random random(2);
  const int32_t width = 516;
  const std::vector<float> x = random.Floats(width), weight = random.Floats(width);
  std::vector<float> shifted(1);
  shifted.insert(shifted.end(), x.begin(), x.end());
  const DeviceBuffer<float> device_weight(weight), aligned(x), unaligned(shifted);
  DeviceBuffer<float> y(width), z(width);
  ASSERT_EQ(
      cuda::LaunchRmsNorm(aligned.data(), device_weight.data(), 1, width, 1e-6f, y.data(), nullptr),
      cudaSuccess);
  ASSERT_EQ(cuda::LaunchRmsNorm(unaligned.data() + 1, device_weight.data(), 1, width, 1e-6f,
                                z.data(), nullptr),
            cudaSuccess);
  EXPECT_EQ(y.Download(), z.Download());
}

// e^x is right to a unit in the last place, 2^-23; three roundings of 2^-24 follow.
TEST(CudaLinear, SwiGluIsTheReferences) {
  const Backend reference = CreateReferenceBackend();
  Random random(3);
  for (const int32_t width : kWidths) {
    const int32_t rows = 2;
    std::vector<float> x = random.Floats(size_t{2} * rows * width, 20.0f);
    if (width == 7) x[0] = 200.0f, x[1] = -200.0f, x[2] = 0.0f, x[3] = -80.0f;
    std::vector<float> expected(size_t{1} * rows * width);
    reference.linear->SwiGlu(x.data(), rows, width, expected.data());
    const DeviceBuffer<float> device_x(x);
    DeviceBuffer<float> y(expected.size());
    ASSERT_EQ(cuda::LaunchSwiGlu(device_x.data(), rows, width, y.data(), nullptr), cudaSuccess);
    // Beyond the clamp of e^x the true value is below 200 e^-87.
    ExpectNear(y.Download(), expected, 0x1.8p-22, 1e-33, absl::StrCat("width ", width));
  }
}

TEST(CudaLinear, SwiGluKeepsNaN) {
  const DeviceBuffer<float> x(std::vector<float>{NAN, 1, 2, 3, 1, 1, NAN, 1});
  DeviceBuffer<float> y(4);
  ASSERT_EQ(cuda::LaunchSwiGlu(x.data(), 1, 4, y.data(), nullptr), cudaSuccess);
  const std::vector<float> result = y.Download();
  EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[2]));
  EXPECT_TRUE(std::isfinite(result[1]) && std::isfinite(result[3]));
}

// Float angles from a double sine: half a unit in the last place, so equal to libm's but where it
// is at the middle.
TEST(CudaLinear, RopeAnglesAreThoseOfDouble) {
  const std::vector<float> frequency = {1.0f, 0.7f, 0.1234567f, 1e-3f, 9.9e-6f, 3.0f, 0.0f, 0.5f};
  const std::vector<int32_t> positions = {0,    1,     2,      3,       63,     64,
                                          1000, 32767, 131071, 1048575, 4000000};
  const auto pairs = static_cast<int32_t>(frequency.size());
  const DeviceBuffer<float> device_frequency(frequency);
  const DeviceBuffer<int32_t> device_positions(positions);
  DeviceBuffer<float> angles(2 * positions.size() * frequency.size());
  const RopeParams rope = {RopeParams::Pairing::kHalves, 2 * pairs, device_frequency.data(), 1.25f};
  ASSERT_EQ(cuda::LaunchRopeAngles(rope, device_positions.data(),
                                   static_cast<int32_t>(positions.size()), angles.data(), nullptr),
            cudaSuccess);
  const std::vector<float> result = angles.Download();
  for (size_t i = 0; i < positions.size() * frequency.size(); ++i) {
    const double angle = double(positions[i / pairs]) * double(frequency[i % pairs]);
    for (const auto& [actual, exact] : {std::pair(result[2 * i], std::cos(angle) * 1.25),
                                        std::pair(result[2 * i + 1], std::sin(angle) * 1.25)}) {
      // 2^-24 relative to round, and 2^-50 for the reduction of the angle.
      ASSERT_LE(std::abs(actual - exact), std::abs(exact) * 0x1.02p-24 + 0x1p-50) << angle;
    }
  }
}

struct RopeCase {
  int32_t head_dim, query_heads, kv_heads, rope_dim;
  bool halves, norms, scale, rotate_k, rotate_v;
};

// Everything one call needs, on both sides.
struct RopeData {
  RopeCase shape;
  int32_t rows;
  std::vector<float> qkv, frequency, q_norm, k_norm, k_scale;
  std::vector<int32_t> positions, tokens;
};

RopeData MakeRopeData(const RopeCase& shape, int32_t rows, uint32_t seed) {
  Random random(seed);
  RopeData data{shape, rows, {}, {}, {}, {}, {}, {}, {}};
  const int32_t heads = shape.query_heads + 2 * shape.kv_heads;
  data.qkv = random.Floats(size_t{1} * rows * heads * shape.head_dim, 4.0f);
  data.frequency.resize(shape.rope_dim / 2);
  for (size_t i = 0; i < data.frequency.size(); ++i) {
    data.frequency[i] = std::pow(10000.0f, -2.0f * i / shape.rope_dim);
  }
  data.q_norm = random.Floats(shape.head_dim);
  data.k_norm = random.Floats(shape.head_dim);
  data.k_scale = random.Floats(size_t{1} * shape.kv_heads * shape.head_dim);
  for (float& s : data.k_scale) s = 1.5f + s;
  for (int32_t row = 0; row < rows; ++row) {
    data.positions.push_back(random.Below(100000));
    data.tokens.push_back((row * 23 + 5) % 64);
  }
  return data;
}

RopeAppendArgs ArgsOf(const RopeData& data) {
  RopeAppendArgs args;
  args.rows = data.rows;
  args.query_heads = data.shape.query_heads;
  args.kv_heads = data.shape.kv_heads;
  args.head_dim = data.shape.head_dim;
  args.norm_epsilon = 1e-5f;
  args.rope.pairing =
      data.shape.halves ? RopeParams::Pairing::kHalves : RopeParams::Pairing::kInterleaved;
  args.rope.dim = data.shape.rope_dim;
  args.rope.magnitude = 1.1f;
  args.rotate_k = data.shape.rotate_k;
  args.rotate_v = data.shape.rotate_v;
  return args;
}

struct RopeResult {
  std::vector<float> q;
  std::vector<std::byte> pages;  // one a row
};

size_t PageBytes(const RopeCase& shape) {
  return PageFormat{KvKind::kF16, KvKind::kF16, shape.kv_heads, shape.head_dim}.BaseBytes();
}

RopeResult RunOnReference(const RopeData& data) {
  const size_t page_bytes = PageBytes(data.shape);
  RopeResult result;
  result.q.resize(size_t{1} * data.rows * data.shape.query_heads * data.shape.head_dim);
  result.pages.assign(page_bytes * data.rows, std::byte{0x5a});
  std::vector<AppendTarget> targets;
  for (int32_t row = 0; row < data.rows; ++row) {
    targets.push_back({result.pages.data() + page_bytes * row, data.tokens[row]});
  }
  RopeAppendArgs args = ArgsOf(data);
  args.qkv = data.qkv.data();
  args.positions = data.positions.data();
  args.rope.frequency = data.frequency.data();
  if (data.shape.norms) args.q_norm = data.q_norm.data(), args.k_norm = data.k_norm.data();
  if (data.shape.scale) args.k_scale = data.k_scale.data();
  args.targets = targets.data();
  args.q = result.q.data();
  CreateReferenceBackend().linear->RopeAppend(args);
  return result;
}

RopeResult RunOnDevice(const RopeData& data) {
  const size_t page_bytes = PageBytes(data.shape);
  DeviceBuffer<std::byte> pages(std::vector<std::byte>(page_bytes * data.rows, std::byte{0x5a}));
  std::vector<AppendTarget> targets;
  for (int32_t row = 0; row < data.rows; ++row) {
    targets.push_back({pages.data() + page_bytes * row, data.tokens[row]});
  }
  const DeviceBuffer<float> qkv(data.qkv), frequency(data.frequency), q_norm(data.q_norm),
      k_norm(data.k_norm), k_scale(data.k_scale);
  const DeviceBuffer<int32_t> positions(data.positions);
  const DeviceBuffer<AppendTarget> device_targets(targets);
  DeviceBuffer<float> q(size_t{1} * data.rows * data.shape.query_heads * data.shape.head_dim);
  DeviceBuffer<float> angles(size_t{1} * data.rows * data.shape.rope_dim + 1);
  RopeAppendArgs args = ArgsOf(data);
  args.qkv = qkv.data();
  args.rope.frequency = frequency.data();
  if (data.shape.norms) args.q_norm = q_norm.data(), args.k_norm = k_norm.data();
  if (data.shape.scale) args.k_scale = k_scale.data();
  args.targets = device_targets.data();
  args.q = q.data();
  EXPECT_EQ(cuda::LaunchRopeAngles(args.rope, positions.data(), data.rows, angles.data(), nullptr),
            cudaSuccess);
  EXPECT_EQ(cuda::LaunchRopeAppend(args, angles.data(), nullptr), cudaSuccess);
  return {q.Download(), pages.Download()};
}

// K and V are float results rounded to half: a difference of the floats (below 2^-18 of the
// greatest value: at most 16 additions of the transform deep) can make the half the next one.
void ExpectSamePages(const RopeResult& actual, const RopeResult& expected, double greatest,
                     const std::string& what) {
  ASSERT_EQ(actual.pages.size(), expected.pages.size());
  for (size_t i = 0; i < actual.pages.size(); i += 2) {
    Half a, b;
    std::memcpy(&a, &actual.pages[i], 2);
    std::memcpy(&b, &expected.pages[i], 2);
    if (a == b) continue;
    const double difference = std::abs(HalfToFloat(a) - HalfToFloat(b));
    ASSERT_LE(difference, std::abs(HalfToFloat(b)) * 0x1p-10 + greatest * 0x1p-18)
        << what << ", half " << i / 2;
  }
}

std::vector<RopeCase> RopeCases(std::initializer_list<int32_t> head_dims) {
  std::vector<RopeCase> cases;
  for (const int32_t dim : head_dims) {
    for (int i = 0; i < 8; ++i) {
      RopeCase one = {dim,          6,          2,         dim, i % 2 == 0, (i & 2) != 0,
                      (i & 4) != 0, i % 3 != 0, i % 4 != 3};
      if (i == 5) one.rope_dim = dim / 2;  // partial
      if (i == 6) one.rope_dim = 0;
      if (i == 7) one.query_heads = one.kv_heads = 1;
      cases.push_back(one);
    }
  }
  return cases;
}

std::string Name(const RopeCase& c) {
  return absl::StrCat("dim ", c.head_dim, " rope ", c.rope_dim, " halves ", c.halves, " norms ",
                      c.norms, " scale ", c.scale, " rotate ", c.rotate_k, c.rotate_v);
}

void TestRope(const std::vector<RopeCase>& shapes) {
  uint32_t seed = 10;
  int cases = 0;
  for (const RopeCase& shape : shapes) {
    const RopeData data = MakeRopeData(shape, 3, seed++);
    const RopeResult expected = RunOnReference(data), actual = RunOnDevice(data);
    // A head's values: 4, times norm weights up to sqrt(dim) in all, times d up to 2.5 or its
    // inverse up to 2; the transform's are at most sqrt(block) times that.
    const double greatest = 4 * 1.1 * 2.5 * std::sqrt(double(shape.head_dim));
    ExpectNear(actual.q, expected.q, 0x1p-18, greatest * 0x1p-20, Name(shape));
    ExpectSamePages(actual, expected, greatest, Name(shape));
    if (testing::Test::HasFatalFailure()) return;
    ++cases;
  }
  std::printf("%d shapes of RoPE and append\n", cases);
}

TEST(CudaLinear, RopeAppendIsTheReferences) { TestRope(RopeCases({80})); }

TEST(CudaLinear, LargeRopeAppendIsTheReferences) {
  TestRope(RopeCases({16, 64, 96, 112, 128, 208, 256}));
}

TEST(CudaLinear, RopeAppendSkipsRowsWithoutATarget) {
  RopeData data = MakeRopeData({64, 2, 1, 64, true, false, false, true, true}, 2, 99);
  data.tokens[1] = 64;  // outside the page
  const RopeResult result = RunOnDevice(data);
  const size_t page = PageBytes(data.shape);
  EXPECT_NE(std::vector<std::byte>(result.pages.begin(), result.pages.begin() + page),
            std::vector<std::byte>(page, std::byte{0x5a}));
  EXPECT_EQ(std::vector<std::byte>(result.pages.begin() + page, result.pages.end()),
            std::vector<std::byte>(page, std::byte{0x5a}));
}

TEST(CudaLinear, UnrotateHeadsIsTheReferences) {
  const Backend reference = CreateReferenceBackend();
  Random random(5);
  for (const int32_t dim : {16, 64, 80, 96, 112, 128, 256}) {
    const int32_t rows = 3, heads = 3;
    const std::vector<float> o = random.Floats(size_t{1} * rows * heads * dim);
    std::vector<float> expected = o;
    reference.linear->UnrotateHeads(rows, heads, dim, expected.data());
    DeviceBuffer<float> device(o);
    ASSERT_EQ(cuda::LaunchUnrotateHeads(rows, heads, dim, device.data(), nullptr), cudaSuccess);
    // Eight levels of addition of values below 1, and the factor.
    ExpectNear(device.Download(), expected, 0, 16 * 0x1p-21, absl::StrCat("dim ", dim));
  }
}

TEST(CudaLinear, GatherRowsCopies) {
  Random random(6);
  for (const int32_t width : {5, 64, 1500}) {
    const std::vector<float> x = random.Floats(size_t{9} * width);
    const std::vector<int32_t> index = {8, 0, 3, 3};
    const DeviceBuffer<float> from(x);
    const DeviceBuffer<int32_t> device_index(index);
    DeviceBuffer<float> to(index.size() * width);
    ASSERT_EQ(
        cuda::LaunchGatherRows(from.data(), device_index.data(), 4, width, to.data(), nullptr),
        cudaSuccess);
    const std::vector<float> y = to.Download();
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y[i], x[size_t{1} * index[i / width] * width + i % width]);
    }
  }
}

TEST(CudaLinear, AddRowsAddsBiasAndResidual) {
  Random random(7);
  for (const int32_t width : {3, 8, 1030}) {
    const int32_t rows = 2;
    const std::vector<float> x = random.Floats(size_t{1} * rows * width);
    const std::vector<float> bias = random.Floats(width), old = random.Floats(x.size());
    for (const bool with_bias : {false, true}) {
      for (const bool accumulate : {false, true}) {
        const DeviceBuffer<float> device_x(x), device_bias(bias);
        DeviceBuffer<float> y(old);
        ASSERT_EQ(cuda::LaunchAddRows(device_x.data(), with_bias ? device_bias.data() : nullptr,
                                      rows, width, accumulate, y.data(), nullptr),
                  cudaSuccess);
        const std::vector<float> result = y.Download();
        for (size_t i = 0; i < x.size(); ++i) {
          const float sum = with_bias ? x[i] + bias[i % width] : x[i];
          ASSERT_EQ(result[i], accumulate ? old[i] + sum : sum);
        }
      }
    }
  }
}

TEST(CudaLinear, NarrowsToNearest) {
  Random random(8);
  std::vector<float> x = random.Floats(700, 100.0f);
  x[0] = 1e30f;
  x[1] = 1e-7f;
  const DeviceBuffer<float> device(x);
  DeviceBuffer<uint16_t> f16(x.size()), bf16(x.size());
  const auto count = static_cast<int64_t>(x.size());
  ASSERT_EQ(cuda::LaunchToF16(device.data(), count, f16.data(), nullptr), cudaSuccess);
  ASSERT_EQ(cuda::LaunchToBF16(device.data(), count, bf16.data(), nullptr), cudaSuccess);
  const std::vector<uint16_t> halves = f16.Download(), brains = bf16.Download();
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(halves[i], FloatToHalf(x[i]));
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    ASSERT_EQ(brains[i], static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
  }
}

TEST(CudaLinear, RefusesWhatItCannotDo) {
  DeviceBuffer<float> x(1024);
  DeviceBuffer<AppendTarget> targets(1);
  EXPECT_EQ(cuda::LaunchRmsNorm(x.data(), x.data(), 1, 0, 0, x.data(), nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchRmsNorm(nullptr, x.data(), 1, 4, 0, x.data(), nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchSwiGlu(x.data(), -1, 4, x.data(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchSwiGlu(x.data(), 65536, 4, x.data(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchUnrotateHeads(1, 1, 72, x.data(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchUnrotateHeads(1, 1, 272, x.data(), nullptr), cudaErrorInvalidValue);
  RopeAppendArgs args = ArgsOf(MakeRopeData({64, 4, 2, 64, true, false, false, true, true}, 1, 1));
  args.qkv = args.q = x.data();
  args.targets = targets.data();
  RopeAppendArgs bad = args;
  bad.query_heads = 3;
  EXPECT_EQ(cuda::LaunchRopeAppend(bad, x.data(), nullptr), cudaErrorInvalidValue);
  bad = args;
  bad.rope.dim = 66;
  EXPECT_EQ(cuda::LaunchRopeAppend(bad, x.data(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchRopeAppend(args, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchRmsNorm(nullptr, nullptr, 0, 4, 0, nullptr, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace strata
