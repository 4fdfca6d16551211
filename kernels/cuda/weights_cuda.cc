#include "kernels/cuda/weights_cuda.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {
namespace {

constexpr int32_t kChunkRows = 16;  // chunks are multiples of it (LaunchPackWeights)

absl::Status PackRows(const WeightSource& source, const PackedWeights& to, const CudaDevice& device,
                      UploadRing* ring, size_t chunk_bytes) {
  const size_t row_bytes = RowBytes(source.type, source.in_features);
  const auto fitting = static_cast<int64_t>(chunk_bytes / row_bytes) / kChunkRows * kChunkRows;
  const auto chunk = static_cast<int32_t>(
      std::clamp<int64_t>(fitting, kChunkRows, int64_t{source.out_features} + kChunkRows));
  for (int32_t first = 0; first < source.out_features; first += chunk) {
    const int32_t rows = std::min(chunk, source.out_features - first);
    STRATA_ASSIGN_OR_RETURN(
        const std::byte* bytes,
        ring->Put(absl::MakeConstSpan(source.data + first * row_bytes, rows * row_bytes)));
    STRATA_CUDA_RETURN_IF_ERROR(LaunchPackWeights(bytes, first, rows, to, device.stream().get()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMatrix>> CudaMatrix::Pack(absl::Span<const WeightSource> sources,
                                                             std::shared_ptr<CudaDevice> device,
                                                             UploadRing* ring, size_t chunk_bytes) {
  STRATA_RETURN_IF_ERROR(device->Bind());
  std::unique_ptr<CudaMatrix> matrix(new CudaMatrix);
  matrix->in_features_ = sources[0].in_features;
  for (const WeightSource& source : sources) {
    const size_t bytes = PackedWeightBytes(source.type, source.out_features, source.in_features);
    STRATA_CHECK(bytes > 0);
    Segment segment;
    segment.first_output = matrix->out_features_;
    STRATA_ASSIGN_OR_RETURN(segment.memory, CudaDevice::AllocateDevice(device, bytes));
    segment.weights = {source.type, source.out_features, source.in_features, segment.memory.data()};
    STRATA_RETURN_IF_ERROR(PackRows(source, segment.weights, *device, ring, chunk_bytes));
    matrix->out_features_ += source.out_features;
    matrix->bytes_ += bytes;
    matrix->segments_.push_back(std::move(segment));
  }
  return matrix;
}

}  // namespace strata::cuda
