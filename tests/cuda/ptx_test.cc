// Each PTX wrapper against a scalar formula: on the executor this checks the emulation, on a GPU
// the wrapper, so that the two agree. The fragment layouts are written here from the PTX ISA as
// strides over (lane, value), not shared with the emulation.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/half.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/ptx_test_kernels_launch.h"

namespace strata {
namespace {

// Where value `v` of `lane` lies in a matrix: A is 16 rows, offset row + 16 column; B is 8 columns,
// offset column + 8 row; C and D are 16 rows. 16-bit elements (m16n8k16) and 8-bit ones (m16n8k32).
int OffsetA16(int lane, int v) {
  return (lane % 4) * 32 + lane / 4 + (v & 1) * 16 + (v >> 1 & 1) * 8 + (v >> 2) * 128;
}
int OffsetB16(int lane, int v) { return (lane % 4) * 16 + lane / 4 + (v & 1) * 8 + (v >> 1) * 64; }
int OffsetA8(int lane, int v) {
  return (lane % 4) * 64 + lane / 4 + (v & 3) * 16 + (v >> 2 & 1) * 8 + (v >> 3) * 256;
}
int OffsetB8(int lane, int v) { return (lane % 4) * 32 + lane / 4 + (v & 3) * 8 + (v >> 2) * 128; }
int OffsetC(int lane, int v) { return (lane % 4) * 32 + lane / 4 + (v & 1) * 16 + (v >> 1) * 8; }

// Registers [32][registers] from a matrix of elements of `bits` bits.
std::vector<uint32_t> Fragment(const std::vector<uint32_t>& matrix, int registers, int bits,
                               int (*offset)(int, int)) {
  std::vector<uint32_t> fragment(32 * registers);
  const int per_register = 32 / bits;
  for (int lane = 0; lane < 32; ++lane) {
    for (int v = 0; v < registers * per_register; ++v) {
      fragment[lane * registers + v / per_register] |= matrix[offset(lane, v)]
                                                       << (v % per_register * bits);
    }
  }
  return fragment;
}

std::vector<uint32_t> RandomElements(std::mt19937* random, int count,
                                     const std::function<uint32_t(uint32_t)>& make) {
  std::vector<uint32_t> elements(count);
  for (uint32_t& element : elements) element = make((*random)());
  return elements;
}

uint32_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits >> 16;
}
float FromBf16(uint32_t bits) {
  bits <<= 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Whole numbers of magnitude 4 or less: sums are exact in any order.
float SmallNumber(uint32_t random) { return static_cast<float>(random >> 8) * 0x1p-24f * 9 - 4.5f; }

void CheckFloatMma(FloatMma variant) {
  const bool half = variant == FloatMma::kF16;
  const auto encode = [half](float value) {
    return half ? uint32_t{FloatToHalf(value)} : ToBf16(value);
  };
  const auto decode = [half](uint32_t bits) {
    return half ? HalfToFloat(static_cast<Half>(bits)) : FromBf16(bits);
  };
  std::mt19937 random(5);
  const auto element = [&](uint32_t r) { return encode(std::nearbyint(SmallNumber(r))); };
  const std::vector<uint32_t> a = RandomElements(&random, 256, element);
  const std::vector<uint32_t> b = RandomElements(&random, 128, element);
  std::vector<float> c(128);
  for (float& x : c) x = std::nearbyint(SmallNumber(static_cast<uint32_t>(random())));
  const DeviceBuffer<uint32_t> device_a(Fragment(a, 4, 16, &OffsetA16));
  const DeviceBuffer<uint32_t> device_b(Fragment(b, 2, 16, &OffsetB16));
  const DeviceBuffer<float> device_c(c);
  DeviceBuffer<float> device_d(128);
  ASSERT_EQ(
      LaunchFloatMma(variant, device_a.data(), device_b.data(), device_c.data(), device_d.data()),
      cudaSuccess);
  const std::vector<float> d = device_d.Download();
  for (int i = 0; i < 128; ++i) {
    const int row = OffsetC(i / 4, i % 4) % 16, column = OffsetC(i / 4, i % 4) / 16;
    float expected = c[i];
    for (int k = 0; k < 16; ++k) expected += decode(a[row + 16 * k]) * decode(b[column + 8 * k]);
    EXPECT_EQ(d[i], expected) << "row " << row << " column " << column;
  }
}

TEST(Ptx, MmaF16) { CheckFloatMma(FloatMma::kF16); }
TEST(Ptx, MmaBf16) { CheckFloatMma(FloatMma::kBf16); }

void CheckIntMma(IntMma variant) {
  const bool a_signed = variant == IntMma::kS8U8 || variant == IntMma::kS8S8;
  const bool b_signed = variant == IntMma::kU8S8 || variant == IntMma::kS8S8;
  const auto decode = [](uint32_t byte, bool is_signed) {
    return is_signed ? int32_t{static_cast<int8_t>(byte)} : static_cast<int32_t>(byte);
  };
  std::mt19937 random(7);
  const auto element = [](uint32_t r) { return r >> 24; };
  const std::vector<uint32_t> a = RandomElements(&random, 512, element);
  const std::vector<uint32_t> b = RandomElements(&random, 256, element);
  std::vector<int32_t> c(128);
  for (int32_t& x : c) x = static_cast<int32_t>(random() >> 8) - (1 << 23);
  const DeviceBuffer<uint32_t> device_a(Fragment(a, 4, 8, &OffsetA8));
  const DeviceBuffer<uint32_t> device_b(Fragment(b, 2, 8, &OffsetB8));
  const DeviceBuffer<int32_t> device_c(c);
  DeviceBuffer<int32_t> device_d(128);
  ASSERT_EQ(
      LaunchIntMma(variant, device_a.data(), device_b.data(), device_c.data(), device_d.data()),
      cudaSuccess);
  const std::vector<int32_t> d = device_d.Download();
  for (int i = 0; i < 128; ++i) {
    const int row = OffsetC(i / 4, i % 4) % 16, column = OffsetC(i / 4, i % 4) / 16;
    int32_t expected = c[i];
    for (int k = 0; k < 32; ++k) {
      expected += decode(a[row + 16 * k], a_signed) * decode(b[column + 8 * k], b_signed);
    }
    EXPECT_EQ(d[i], expected) << "row " << row << " column " << column;
  }
}

TEST(Ptx, MmaU8S8) { CheckIntMma(IntMma::kU8S8); }
TEST(Ptx, MmaS8U8) { CheckIntMma(IntMma::kS8U8); }
TEST(Ptx, MmaS8S8) { CheckIntMma(IntMma::kS8S8); }
TEST(Ptx, MmaU8U8) { CheckIntMma(IntMma::kU8U8); }

// Lane l gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix; of a column when
// transposed.
void CheckLdmatrix(int matrices, bool transposed) {
  std::mt19937 random(11);
  std::vector<uint16_t> values(matrices * 64);
  for (uint16_t& value : values) value = static_cast<uint16_t>(random());
  const DeviceBuffer<uint16_t> device_values(values);
  DeviceBuffer<uint32_t> device_out(32 * matrices);
  ASSERT_EQ(LaunchLdmatrix(matrices, transposed, device_values.data(), device_out.data()),
            cudaSuccess);
  const std::vector<uint32_t> out = device_out.Download();
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < matrices; ++m) {
      const int major = lane / 4, minor = lane % 4 * 2;
      const int step = transposed ? 8 : 1;
      const int first = m * 64 + (transposed ? minor * 8 + major : major * 8 + minor);
      EXPECT_EQ(out[lane * matrices + m], values[first] | uint32_t{values[first + step]} << 16)
          << "lane " << lane << " matrix " << m;
    }
  }
}

TEST(Ptx, LdmatrixX1) { CheckLdmatrix(1, false); }
TEST(Ptx, LdmatrixX2) { CheckLdmatrix(2, false); }
TEST(Ptx, LdmatrixX4) { CheckLdmatrix(4, false); }
TEST(Ptx, LdmatrixX1Trans) { CheckLdmatrix(1, true); }
TEST(Ptx, LdmatrixX2Trans) { CheckLdmatrix(2, true); }
TEST(Ptx, LdmatrixX4Trans) { CheckLdmatrix(4, true); }

std::vector<uint4> RandomVectors(int count) {
  std::mt19937 random(13);
  const auto next = [&random] { return static_cast<uint32_t>(random()); };
  std::vector<uint4> vectors(count);
  for (uint4& v : vectors) v = {next(), next(), next(), next()};
  return vectors;
}

bool Equal(const uint4& a, const uint4& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

TEST(Ptx, CpAsync) {
  const std::vector<uint4> in = RandomVectors(96);
  const DeviceBuffer<uint4> device_in(in);
  DeviceBuffer<uint4> device_out(96);
  ASSERT_EQ(LaunchCpAsync(device_in.data(), nullptr, device_out.data()), cudaSuccess);
  const std::vector<uint4> out = device_out.Download();
  for (int i = 0; i < 96; ++i) EXPECT_TRUE(Equal(out[i], in[i ^ 1])) << i;
}

TEST(Ptx, CpAsyncZeroFill) {
  std::vector<uint4> in = RandomVectors(96);
  std::vector<int32_t> bytes(96);
  for (int i = 0; i < 96; ++i) bytes[i] = i % 17;
  const DeviceBuffer<uint4> device_in(in);
  const DeviceBuffer<int32_t> device_bytes(bytes);
  DeviceBuffer<uint4> device_out(96);
  ASSERT_EQ(LaunchCpAsync(device_in.data(), device_bytes.data(), device_out.data()), cudaSuccess);
  const std::vector<uint4> out = device_out.Download();
  for (int i = 0; i < 96; ++i) {
    uint4 expected{};
    std::memcpy(&expected, &in[i ^ 1], static_cast<size_t>(bytes[i ^ 1]));
    EXPECT_TRUE(Equal(out[i], expected)) << i;
  }
}

void CheckDp4a(Dot variant) {
  std::mt19937 random(17);
  const auto any = [](uint32_t r) { return r; };
  const std::vector<uint32_t> a = RandomElements(&random, 32, any);
  const std::vector<uint32_t> b = RandomElements(&random, 32, any);
  std::vector<int32_t> c(32);
  for (int32_t& x : c) x = static_cast<int32_t>(random() >> 8) - (1 << 23);
  const DeviceBuffer<uint32_t> device_a(a), device_b(b);
  const DeviceBuffer<int32_t> device_c(c);
  DeviceBuffer<int32_t> device_out(32);
  ASSERT_EQ(
      LaunchDp4a(variant, device_a.data(), device_b.data(), device_c.data(), device_out.data()),
      cudaSuccess);
  const std::vector<int32_t> out = device_out.Download();
  for (int i = 0; i < 32; ++i) {
    int32_t expected = c[i];
    for (int byte = 0; byte < 4; ++byte) {
      const auto x = static_cast<uint8_t>(a[i] >> (8 * byte));
      const auto y = static_cast<uint8_t>(b[i] >> (8 * byte));
      const int32_t left = variant == Dot::kS8S8 ? static_cast<int8_t>(x) : int32_t{x};
      const int32_t right = variant == Dot::kU8U8 ? int32_t{y} : static_cast<int8_t>(y);
      expected += left * right;
    }
    EXPECT_EQ(out[i], expected) << i;
  }
}

TEST(Ptx, Dp4aU8S8) { CheckDp4a(Dot::kU8S8); }
TEST(Ptx, Dp4aS8S8) { CheckDp4a(Dot::kS8S8); }
TEST(Ptx, Dp4aU8U8) { CheckDp4a(Dot::kU8U8); }

void CheckCopy16(CacheHint hint) {
  const std::vector<uint4> in = RandomVectors(32);
  const DeviceBuffer<uint4> device_in(in);
  DeviceBuffer<uint4> device_out(32);
  ASSERT_EQ(LaunchCopy16(hint, device_in.data(), device_out.data()), cudaSuccess);
  const std::vector<uint4> out = device_out.Download();
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(Equal(out[i], in[i])) << i;
}

TEST(Ptx, LoadNoAllocate16) { CheckCopy16(CacheHint::kNoAllocate); }
TEST(Ptx, LoadAndStoreStreaming16) { CheckCopy16(CacheHint::kStreaming); }

// PTX ISA, ex2.approx.ftz.f32: at most 2 ulp, which is 2^-22 relative; subnormal results are 0.
TEST(Ptx, Exp2Approx) {
  std::vector<float> in = {0, -0.0f, 1, -1, 127, -126, -140, -1e30f, -INFINITY, 128, INFINITY};
  std::mt19937 random(19);
  while (in.size() < 1000) in.push_back(static_cast<float>(random() % 250000) / 1000 - 125);
  const DeviceBuffer<float> device_in(in);
  DeviceBuffer<float> device_out(in.size());
  ASSERT_EQ(LaunchExp2(device_in.data(), device_out.data(), static_cast<int>(in.size())),
            cudaSuccess);
  const std::vector<float> out = device_out.Download();
  for (size_t i = 0; i < in.size(); ++i) {
    const double exact = std::exp2(double{in[i]});
    if (exact > 3.4028235e38) {
      EXPECT_EQ(out[i], INFINITY) << in[i];
    } else if (exact < 0x1p-126) {
      EXPECT_EQ(out[i], 0) << in[i];
    } else {
      EXPECT_NEAR(out[i] / exact, 1, 0x1p-22) << in[i];
    }
  }
}

// Not PTX, but as basic: the butterfly's order of addition is part of its contract.
TEST(Ptx, WarpReductions) {
  std::mt19937 random(23);
  std::vector<float> in(32);
  for (float& x : in) x = SmallNumber(static_cast<uint32_t>(random()));
  std::vector<float> sums = in;
  for (int offset = 16; offset > 0; offset /= 2) {
    std::vector<float> next(32);
    for (int lane = 0; lane < 32; ++lane) next[lane] = sums[lane] + sums[lane ^ offset];
    sums = next;
  }
  const DeviceBuffer<float> device_in(in);
  DeviceBuffer<float> device_out(96);
  ASSERT_EQ(LaunchWarpReductions(device_in.data(), device_out.data()), cudaSuccess);
  const std::vector<float> out = device_out.Download();
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out[lane], sums[lane]);
    EXPECT_EQ(out[32 + lane], *std::max_element(in.begin(), in.end()));
    EXPECT_EQ(out[64 + lane], *std::min_element(in.begin(), in.end()));
  }
}

}  // namespace
}  // namespace strata
