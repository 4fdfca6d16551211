#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/cuda/suites.h"
#include "kernels/cuda/matmul_launch.h"
#include "kernels/reference/linear_dequantize.h"
#include "tests/cuda/device_buffer.h"
#include "tests/kernels/linear_testing.h"

namespace strata::bench {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF16, WeightType::kQ8_0, WeightType::kQ4_1,
                                 WeightType::kQ4_K, WeightType::kQ6_K};

// Copies of one matrix, packed for the device.
class Matrices {
 public:
  Matrices(const WeightSource& source, int copies) {
    const size_t row_bytes = RowBytes(source.type, source.in_features);
    const DeviceBuffer<std::byte> file(
        std::vector<std::byte>(source.data, source.data + row_bytes * source.out_features));
    bytes_ = cuda::PackedWeightBytes(source.type, source.out_features, source.in_features);
    for (int i = 0; i < copies; ++i) {
      memory_.push_back(std::make_unique<DeviceBuffer<std::byte>>(bytes_));
      weights_.push_back(
          {source.type, source.out_features, source.in_features, memory_.back()->data()});
      STRATA_CUDA_OK(
          cuda::LaunchPackWeights(file.data(), 0, source.out_features, weights_.back(), nullptr));
    }
    STRATA_CUDA_OK(cudaDeviceSynchronize());
  }
  const std::vector<cuda::PackedWeights>& weights() const { return weights_; }
  size_t bytes() const { return bytes_; }  // of one

 private:
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<DeviceBuffer<std::byte>>> memory_;
  std::vector<cuda::PackedWeights> weights_;
};

// The largest difference to sums in double, in the first row and 16 outputs, over the sum of
// magnitudes.
double RelativeError(const WeightSource& source, const std::vector<float>& x,
                     const std::vector<float>& y) {
  std::vector<float> row(source.in_features);
  double worst = 0;
  for (int32_t o = 0; o < std::min(16, source.out_features); ++o) {
    DequantizeRow(source.type, source.data + RowBytes(source.type, source.in_features) * o,
                  source.in_features, row.data());
    double sum = 0, magnitude = 0;
    for (int32_t i = 0; i < source.in_features; ++i) {
      sum += double{row[i]} * x[i];
      magnitude += std::abs(double{row[i]} * x[i]);
    }
    worst = std::max(worst, std::abs(y[o] - sum) / magnitude);
  }
  return worst;
}

}  // namespace

// Products with weights in their stored bits; bytes are the weights'. Every run goes round matrices
// that no cache holds.
absl::StatusOr<nlohmann::json> RunCudaMatmul(const CudaBenchOptions& options) {
  const int32_t size = options.smoke ? 256 : 4096;
  const std::vector<int32_t> row_counts =
      options.smoke ? std::vector<int32_t>{1, 20} : std::vector<int32_t>{1, 8, 64, 512};
  constexpr double kBeyondCaches = 256 << 20;
  nlohmann::json rows = nlohmann::json::array();
  for (const WeightType type : kTypes) {
    const testing::TestWeights w = testing::MakeWeights(type, size, size, 1);
    const double file_bytes = static_cast<double>(RowBytes(type, size)) * size;
    const int copies = options.smoke ? 1 : static_cast<int>(std::ceil(kBeyondCaches / file_bytes));
    const Matrices matrices(w.source, copies);
    for (const int32_t count : row_counts) {
      const std::vector<float> x =
          testing::Random(static_cast<uint64_t>(count)).Floats(size_t{1} * count * size);
      const DeviceBuffer<float> device_x(x);
      DeviceBuffer<std::byte> panel(cuda::ActivationPanelBytes(count, size));
      DeviceBuffer<float> y(size_t{1} * count * size);
      STRATA_CUDA_OK(
          cuda::LaunchPrepareActivations(device_x.data(), count, size, panel.data(), nullptr));
      const double seconds =
          DeviceSeconds(options, nullptr,
                        [&] {
                          for (const cuda::PackedWeights& weights : matrices.weights()) {
                            cuda::MatmulArgs args;
                            args.weights = weights;
                            args.panel = panel.data();
                            args.rows = count;
                            args.y = y.data();
                            args.y_stride = size;
                            STRATA_CUDA_OK(cuda::LaunchMatmul(args, nullptr));
                          }
                        }) /
          copies;
      // Activations keep 22 bits; float sums of 4096 products add less than 4096 * 2^-24.
      const double error = RelativeError(w.source, x, y.Download());
      if (!(error < 3e-4)) {
        return absl::InternalError(absl::StrCat(InfoOf(type).name, " with ", count,
                                                " rows is off by ", error, ", limit 3e-4"));
      }
      const double bytes = static_cast<double>(matrices.bytes());
      rows.push_back({{"type", InfoOf(type).name},
                      {"rows", count},
                      {"us", seconds * 1e6},
                      {"bytes_per_s", bytes / seconds},
                      {"of_copy", bytes / seconds / options.copy_bytes_per_s},
                      {"flops_per_s", 2.0 * count * size * size / seconds}});
    }
  }
  return nlohmann::json{{"in_features", size}, {"out_features", size}, {"rows", rows}};
}

}  // namespace strata::bench
