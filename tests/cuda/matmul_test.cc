// Packed weights and products with them, for every type: values to the bit, products against sums
// in double, and the promise that a row's bits do not depend on the number of rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/matmul_launch.h"
#include "kernels/reference/linear_dequantize.h"
#include "tests/cuda/device_buffer.h"
#include "tests/kernels/linear_testing.h"

namespace strata {
namespace {

using testing::kAllWeightTypes;
using testing::MakeWeights;
using testing::TestWeights;

// Packed on the device, in pieces of `piece` rows.
class Packed {
 public:
  Packed(const WeightSource& source, int32_t piece, uint8_t fill = 0xff)
      : bytes_(std::vector<std::byte>(
            cuda::PackedWeightBytes(source.type, source.out_features, source.in_features),
            std::byte{fill})) {
    weights_ = {source.type, source.out_features, source.in_features, bytes_.data()};
    const size_t row_bytes = RowBytes(source.type, source.in_features);
    for (int32_t first = 0; first < source.out_features; first += piece) {
      const int32_t rows = std::min(piece, source.out_features - first);
      const DeviceBuffer<std::byte> staging(std::vector<std::byte>(
          source.data + row_bytes * first, source.data + row_bytes * (first + rows)));
      EXPECT_EQ(cuda::LaunchPackWeights(staging.data(), first, rows, weights_, nullptr),
                cudaSuccess);
      STRATA_CUDA_OK(cudaDeviceSynchronize());
    }
  }
  const cuda::PackedWeights& weights() const { return weights_; }
  std::vector<std::byte> Bytes() const { return bytes_.Download(); }

 private:
  DeviceBuffer<std::byte> bytes_;
  cuda::PackedWeights weights_;
};

int32_t WholeBlocks(WeightType type, int32_t columns) {
  const int32_t values = InfoOf(type).block_values;
  return (columns + values - 1) / values * values;
}

std::vector<float> Dequantized(const WeightSource& source) {
  std::vector<float> values(size_t{1} * source.out_features * source.in_features);
  for (int32_t r = 0; r < source.out_features; ++r) {
    DequantizeRow(source.type, source.data + RowBytes(source.type, source.in_features) * r,
                  source.in_features, values.data() + size_t{1} * r * source.in_features);
  }
  return values;
}

TEST(CudaMatmul, EmbeddedRowsAreTheValuesOfTheirType) {
  int cases = 0;
  for (const WeightType type : kAllWeightTypes) {
    for (const auto& [out, in] : {std::pair(1, 32), std::pair(37, 96), std::pair(16, 600)}) {
      const TestWeights w = MakeWeights(type, out, WholeBlocks(type, in), 3);
      const int32_t columns = w.source.in_features;
      const Packed packed(w.source, 16);
      std::vector<int32_t> ids = {0, out - 1, out / 2, 1000 + out};
      for (int32_t& id : ids) id += 50;  // the part's first row in a stacked matrix
      const DeviceBuffer<int32_t> device_ids(ids);
      DeviceBuffer<float> rows(std::vector<float>(ids.size() * columns, -7.0f));
      ASSERT_EQ(
          cuda::LaunchEmbedRows(packed.weights(), 50, device_ids.data(), 4, rows.data(), nullptr),
          cudaSuccess);
      const std::vector<float> values = Dequantized(w.source), result = rows.Download();
      for (size_t i = 0; i < result.size(); ++i) {
        const int32_t row = ids[i / columns] - 50;
        const float expected = row < out ? values[size_t{1} * row * columns + i % columns] : -7.0f;
        ASSERT_EQ(std::bit_cast<uint32_t>(result[i]), std::bit_cast<uint32_t>(expected))
            << InfoOf(type).name << " row " << row << " column " << i % columns;
      }
      ++cases;
    }
  }
  std::printf("%d matrices packed\n", cases);
}

// In pieces or at once, over memory of ones or of zeros: the same bytes, so all are written.
TEST(CudaMatmul, PackingWritesEveryByteWhateverThePieces) {
  for (const WeightType type : kAllWeightTypes) {
    const TestWeights w = MakeWeights(type, 41, WholeBlocks(type, 160), 4);
    EXPECT_EQ(Packed(w.source, 16, 0xff).Bytes(), Packed(w.source, 1 << 20, 0).Bytes())
        << InfoOf(type).name;
  }
}

TEST(CudaMatmul, DequantizeRoundsToNearest) {
  for (const WeightType type : kAllWeightTypes) {
    const TestWeights w = MakeWeights(type, 20, WholeBlocks(type, 64), 5);
    const Packed packed(w.source, 32);
    const size_t columns = w.source.in_features;
    DeviceBuffer<uint16_t> out(3 * columns);
    ASSERT_EQ(
        cuda::LaunchDequantize(packed.weights(), 17, 3, WeightType::kF16, out.data(), nullptr),
        cudaSuccess);
    const std::vector<uint16_t> halves = out.Download();
    const std::vector<float> values = Dequantized(w.source);
    for (size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(halves[i], FloatToHalf(values[17 * columns + i])) << InfoOf(type).name;
    }
  }
}

// x: [rows][in]. y starts as `old`.
std::vector<float> Multiply(const cuda::PackedWeights& weights, const std::vector<float>& x,
                            int32_t rows, const std::vector<float>& bias, bool accumulate,
                            const std::vector<float>& old, int32_t stride,
                            cuda::MatmulKernel kernel = cuda::MatmulKernel::kAuto) {
  const DeviceBuffer<float> device_x(x), device_bias(bias.empty() ? std::vector<float>(1) : bias);
  DeviceBuffer<std::byte> panel(cuda::ActivationPanelBytes(rows, weights.in_features));
  DeviceBuffer<float> y(old);
  EXPECT_EQ(cuda::LaunchPrepareActivations(device_x.data(), rows, weights.in_features, panel.data(),
                                           nullptr),
            cudaSuccess);
  cuda::MatmulArgs args;
  args.weights = weights;
  args.panel = panel.data();
  args.rows = rows;
  args.bias = bias.empty() ? nullptr : device_bias.data();
  args.accumulate = accumulate;
  args.y = y.data();
  args.y_stride = stride;
  args.kernel = kernel;
  EXPECT_EQ(cuda::LaunchMatmul(args, nullptr), cudaSuccess);
  return y.Download();
}

std::vector<float> Multiply(const cuda::PackedWeights& weights, const std::vector<float>& x,
                            int32_t rows, cuda::MatmulKernel kernel = cuda::MatmulKernel::kAuto) {
  return Multiply(weights, x, rows, {}, false,
                  std::vector<float>(size_t{1} * rows * weights.out_features, NAN),
                  weights.out_features, kernel);
}

// |error| of one output whose partial sums reach `reach`, for a row of activations.
//
// Activations: hi and lo keep 2^-22 of the row's greatest; F32 weights likewise. An MMA adds 16
// products and the sum so far and may cut each at 2^-23 of the greatest of them: 17 * 2^-23 of what
// a sum can reach. A group of codes starts from zero and takes four MMAs, of parts (scale times
// code, minimum) that may cancel: part_bound bounds them before. A plain row's sum goes through two
// MMAs every 16 columns, three for F32. Scales, minima, slices and the end are single additions.
double Bound(const TestWeights& w, const float* x, double reach) {
  const int32_t columns = w.source.in_features;
  double sum = 0, greatest = 0;
  for (int32_t i = 0; i < columns; ++i) {
    sum += std::abs(x[i]);
    greatest = std::max(greatest, double{std::abs(x[i])});
  }
  const double inputs = w.part_bound * (0x1p-22 * columns * greatest + 0x1p-22 * sum);
  const double end = 16 * 0x1p-23 * w.part_bound * sum;
  if (testing::IsPlain(w.source.type))
    return inputs + end + 3.0 * columns / 16 * 17 * 0x1p-23 * reach;
  return inputs + end + (4 * 17 + 3.0 * columns / 16) * 0x1p-23 * w.part_bound * sum;
}

void ExpectProduct(const TestWeights& w, const std::vector<float>& x, int32_t rows,
                   const std::vector<float>& y) {
  const std::vector<float> values = Dequantized(w.source);
  const int32_t columns = w.source.in_features, out = w.source.out_features;
  for (int32_t r = 0; r < rows; ++r) {
    const float* row = x.data() + size_t{1} * r * columns;
    for (int32_t o = 0; o < out; ++o) {
      double sum = 0, reach = 0;
      for (int32_t c = 0; c < columns; ++c) {
        const double product = double{row[c]} * double{values[size_t{1} * o * columns + c]};
        sum += product;
        // Within an MMA products may come in any order; a slice's sum starts anew.
        reach = std::max({reach, 2 * std::abs(sum), std::abs(product)});
      }
      ASSERT_LE(std::abs(y[size_t{1} * r * out + o] - sum), Bound(w, row, reach))
          << InfoOf(w.source.type).name << " " << out << "x" << columns << " row " << r << " of "
          << rows << " output " << o;
    }
  }
}

constexpr cuda::MatmulKernel kKernels[] = {cuda::MatmulKernel::kFewRows,
                                           cuda::MatmulKernel::kManyRows};

struct Size {
  int32_t out, in, rows;
};

void TestProducts(std::initializer_list<Size> sizes) {
  int cases = 0;
  for (const WeightType type : kAllWeightTypes) {
    for (const auto& [out, in, rows] : sizes) {
      const TestWeights w = MakeWeights(type, out, WholeBlocks(type, in), 7);
      const Packed packed(w.source, 1 << 20);
      testing::Random random(8);
      const std::vector<float> x = random.Floats(size_t{1} * rows * w.source.in_features, 3.0f);
      for (const cuda::MatmulKernel kernel : kKernels) {
        ExpectProduct(w, x, rows, Multiply(packed.weights(), x, rows, kernel));
      }
      if (::testing::Test::HasFatalFailure()) return;
      ++cases;
    }
  }
  std::printf("%d products\n", cases);
}

TEST(CudaMatmul, ProductsAreTheSums) { TestProducts({{5, 32, 1}, {18, 96, 9}}); }

// One row, a full tile of them, and more than the kernel for few rows takes; matrices of one unit
// and of several slices, with rows and columns that fill no tile.
TEST(CudaMatmul, LargeProductsAreTheSums) {
  TestProducts({{5, 32, 1}, {40, 96, 8}, {21, 600, 3}, {150, 64, 11}, {20, 600, 35}});
}

// Whole numbers with 13 bits, more than a half keeps, times whole weights: sums that a float holds,
// so that what lo carries is seen to the last bit.
TEST(CudaMatmul, BothHalvesOfAnActivationCount) {
  const int32_t out = 16, in = 64, rows = 2;
  testing::Random random(18);
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                WeightType::kQ4_0, WeightType::kQ4_1}) {
    const bool plain = testing::IsPlain(type);
    TestWeights w = MakeWeights(type, out, in, 19);
    const int32_t step = InfoOf(type).block_bytes;
    for (size_t i = 0; i < w.bytes.size(); i += step) {
      const auto whole = static_cast<float>(static_cast<int32_t>(random.Bits() % 17) - 8);
      const uint16_t half = FloatToHalf(whole), d = FloatToHalf(1.0f), m = FloatToHalf(-3.0f);
      const auto upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(whole) >> 16);
      if (type == WeightType::kF32) std::memcpy(&w.bytes[i], &whole, 4);
      if (type == WeightType::kF16) std::memcpy(&w.bytes[i], &half, 2);
      if (type == WeightType::kBF16) std::memcpy(&w.bytes[i], &upper, 2);
      if (!plain) std::memcpy(&w.bytes[i], &d, 2);
      if (type == WeightType::kQ4_1) std::memcpy(&w.bytes[i + 2], &m, 2);
    }
    // An F32 weight keeps more than a half, too.
    if (type == WeightType::kF32) {
      const float large = 4097.0f;
      std::memcpy(w.bytes.data(), &large, sizeof(large));
    }
    std::vector<float> x(size_t{1} * rows * in);
    for (float& value : x)
      value = static_cast<float>(static_cast<int32_t>(random.Bits() % 8191) - 4095);
    const Packed packed(w.source, 16);
    const std::vector<float> values = Dequantized(w.source);
    for (const cuda::MatmulKernel kernel : kKernels) {
      const std::vector<float> y = Multiply(packed.weights(), x, rows, kernel);
      for (int32_t i = 0; i < rows * out; ++i) {
        double sum = 0;
        for (int32_t c = 0; c < in; ++c) {
          sum += double{x[i / out * in + c]} * double{values[i % out * in + c]};
        }
        ASSERT_EQ(y[i], sum) << InfoOf(type).name << " " << i;
      }
    }
  }
}

// A token alone, in a decode step and in a prefill piece is the same token.
void TestCompany(WeightType type, int32_t in, int32_t rows,
                 std::initializer_list<std::pair<int32_t, int32_t>> parts) {
  const int32_t out = 23;
  const TestWeights w = MakeWeights(type, out, WholeBlocks(type, in), 9);
  const Packed packed(w.source, 1 << 20);
  const size_t columns = w.source.in_features;
  testing::Random random(10);
  std::vector<float> x = random.Floats(rows * columns, 2.0f);
  for (size_t i = 0; i < columns; ++i) x[3 * columns + i] *= 1000.0f;  // rows of other ranges
  const std::vector<float> together =
      Multiply(packed.weights(), x, rows, cuda::MatmulKernel::kManyRows);
  ASSERT_EQ(Multiply(packed.weights(), x, rows, cuda::MatmulKernel::kFewRows), together)
      << InfoOf(type).name;
  for (const auto& [first, count] : parts) {
    const std::vector<float> part(x.begin() + first * columns,
                                  x.begin() + (first + count) * columns);
    const std::vector<float> alone = Multiply(packed.weights(), part, count);
    ASSERT_EQ(alone, std::vector<float>(together.begin() + first * out,
                                        together.begin() + (first + count) * out))
        << InfoOf(type).name << " rows " << first << " and " << count - 1 << " more";
  }
}

TEST(CudaMatmul, ARowHasTheSameBitsInAnyCompany) {
  for (const WeightType type : {WeightType::kF32, WeightType::kQ5_1, WeightType::kQ6_K}) {
    TestCompany(type, 160, 9, {{0, 1}, {3, 1}, {1, 8}});
  }
}

TEST(CudaMatmul, LargeCompany) {
  for (const WeightType type : kAllWeightTypes) {
    TestCompany(type, 1120, 34, {{0, 1}, {3, 1}, {2, 8}, {33, 1}, {20, 9}});
  }
}

TEST(CudaMatmul, AddsBiasAndWhatIsThereAndLeavesOtherColumns) {
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kF32}) {
    for (const int32_t rows : {2, 10}) {
      const int32_t out = 18, stride = 21;
      const TestWeights w = MakeWeights(type, out, 64, 11);
      const Packed packed(w.source, 1 << 20);
      testing::Random random(12);
      const std::vector<float> x = random.Floats(size_t{64} * rows), bias = random.Floats(out);
      const std::vector<float> old = random.Floats(size_t{1} * rows * stride);
      const std::vector<float> plain = Multiply(packed.weights(), x, rows);
      const cuda::MatmulKernel kernel = kKernels[rows / 10];
      const std::vector<float> y =
          Multiply(packed.weights(), x, rows, bias, true, old, stride, kernel);
      for (int32_t i = 0; i < rows * stride; ++i) {
        const int32_t o = i % stride;
        const float expected = o < out ? old[i] + (plain[i / stride * out + o] + bias[o]) : old[i];
        ASSERT_EQ(y[i], expected) << i;
      }
    }
  }
}

TEST(CudaMatmul, ARowThatIsNotFiniteSpoilsOnlyItself) {
  const TestWeights w = MakeWeights(WeightType::kQ8_0, 16, 64, 13);
  const Packed packed(w.source, 1 << 20);
  for (const int32_t rows : {3, 12}) {
    testing::Random random(14);
    std::vector<float> x = random.Floats(size_t{64} * rows);
    const cuda::MatmulKernel kernel = kKernels[rows / 12];
    const std::vector<float> good = Multiply(packed.weights(), x, rows, kernel);
    x[64 + 5] = INFINITY;
    const std::vector<float> y = Multiply(packed.weights(), x, rows, kernel);
    for (int32_t i = 0; i < 16 * rows; ++i) {
      if (i / 16 == 1) {
        EXPECT_FALSE(std::isfinite(y[i]));
      } else {
        EXPECT_EQ(y[i], good[i]);
      }
    }
  }
}

// Rows whose scale would leave the floats' range, zeros, and values far apart.
TEST(CudaMatmul, SurvivesExtremeRanges) {
  const TestWeights w = MakeWeights(WeightType::kQ4_0, 16, 64, 15);
  const Packed packed(w.source, 1 << 20);
  for (const float scale : {0.0f, 1e-38f, 1e-30f, 1e30f}) {
    testing::Random random(16);
    std::vector<float> x = random.Floats(64, scale);
    // Below 2^-112 a row keeps what halves scaled by 2^126 can hold: the bound is absolute there.
    const std::vector<float> y = Multiply(packed.weights(), x, 1);
    ExpectProduct(w, x, 1, y);
  }
}

TEST(CudaMatmul, RefusesWhatItCannotDo) {
  EXPECT_EQ(cuda::PackedWeightBytes(WeightType::kQ4_K, 16, 128), 0u);
  EXPECT_EQ(cuda::PackedWeightBytes(static_cast<WeightType>(77), 16, 256), 0u);
  EXPECT_EQ(cuda::PackedWeightBytes(WeightType::kF16, 0, 256), 0u);
  const TestWeights w = MakeWeights(WeightType::kQ4_0, 48, 64, 17);
  const Packed packed(w.source, 1 << 20);
  DeviceBuffer<std::byte> source(w.bytes);
  const cuda::PackedWeights& to = packed.weights();
  EXPECT_EQ(cuda::LaunchPackWeights(source.data(), 8, 16, to, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchPackWeights(source.data(), 0, 17, to, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchPackWeights(source.data(), 32, 32, to, nullptr), cudaErrorInvalidValue);
  DeviceBuffer<std::byte> panel(cuda::ActivationPanelBytes(1, 64));
  DeviceBuffer<float> y(48);
  cuda::MatmulArgs args = {to, panel.data(), 1, nullptr, false, y.data(), 47};
  EXPECT_EQ(cuda::LaunchMatmul(args, nullptr), cudaErrorInvalidValue);
  args = {to, panel.data() + 16, 1, nullptr, false, y.data(), 48};
  EXPECT_EQ(cuda::LaunchMatmul(args, nullptr), cudaErrorInvalidValue);
  args.rows = 0;
  EXPECT_EQ(cuda::LaunchMatmul(args, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace strata
