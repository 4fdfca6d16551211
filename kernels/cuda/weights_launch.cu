#include "kernels/cuda/weights_checks.h"
#include "kernels/cuda/weights_kernels.cuh"

namespace strata::cuda {
namespace {

unsigned Blocks(int64_t count, int64_t block) {
  return static_cast<unsigned>((count + block - 1) / block);
}

bool ValidSize(int32_t features) { return features > 0 && features <= kPackedFeaturesMax; }

// Tiles [first, first + count), at most a grid's y of them.
cudaError_t PackTiles(FileRows file, const PackedShape& shape, int32_t tiles,
                      const PackedWeights& to, cudaStream_t stream) {
  const dim3 grid(Blocks(shape.units, kPackWarps), static_cast<unsigned>(tiles));
  const dim3 block(kPackWarps * 32);
  const cudaError_t packed =
      gpu::Launch(PackWeightsKernel, grid, block, 0, stream, file, shape, to.data);
  if (packed != cudaSuccess || shape.format.scaling != Scaling::kRow) return packed;
  const int32_t rows = tiles * kTileRows;
  return gpu::Launch(PackRowScalesKernel, dim3(Blocks(rows, kPackWarps)), block, 0, stream, file,
                     rows, reinterpret_cast<float*>(to.data + shape.RowScales()));
}

}  // namespace

size_t PackedWeightBytes(WeightType type, int32_t out_features, int32_t in_features) {
  if (static_cast<int>(type) >= kWeightTypes || !ValidSize(out_features) ||
      !ValidSize(in_features) ||
      in_features % kWeightTypeInfo[static_cast<int>(type)].block_values != 0) {
    return 0;
  }
  return static_cast<size_t>(PackedShape(type, out_features, in_features).Bytes());
}

cudaError_t LaunchPackWeights(const std::byte* source, int32_t first_row, int32_t rows,
                              const PackedWeights& to, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (source == nullptr || !ValidPacked(to) || first_row < 0 || rows < 0 ||
      first_row % kTileRows != 0 || rows > to.out_features - first_row ||
      (rows % kTileRows != 0 && first_row + rows != to.out_features)) {
    return cudaErrorInvalidValue;
  }
  const WeightTypeInfo& block = kWeightTypeInfo[static_cast<int>(to.type)];
  const PackedShape shape(to.type, to.out_features, to.in_features);
  const int64_t row_bytes = int64_t{1} * (to.in_features / block.block_values) * block.block_bytes;
  const int32_t launch_rows = kGridRowsMax * kTileRows;
  for (int32_t done = 0; done < rows; done += launch_rows) {
    const int32_t n = rows - done < launch_rows ? rows - done : launch_rows;
    const FileRows file = {to.type, block.block_values, block.block_bytes,        first_row + done,
                           n,       to.in_features,     source + done * row_bytes};
    const cudaError_t packed = PackTiles(file, shape, (n + kTileRows - 1) / kTileRows, to, stream);
    if (packed != cudaSuccess) return packed;
  }
  return cudaSuccess;
}

cudaError_t LaunchEmbedRows(const PackedWeights& weights, int32_t first_row, const int32_t* ids,
                            int32_t count, float* out, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (count < 0 || count > kGridRowsMax || !ValidPacked(weights) || ids == nullptr ||
      out == nullptr) {
    return cudaErrorInvalidValue;
  }
  const PackedShape shape(weights.type, weights.out_features, weights.in_features);
  return gpu::Launch(EmbedRowsKernel,
                     dim3(Blocks(weights.in_features, kValueThreads), static_cast<unsigned>(count)),
                     dim3(kValueThreads), 0, stream, weights, shape, first_row, ids, out);
}

cudaError_t LaunchDequantize(const PackedWeights& weights, int32_t first_row, int32_t rows,
                             WeightType type, uint16_t* out, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (!ValidPacked(weights) || first_row < 0 || rows < 0 || rows > kGridRowsMax ||
      rows > weights.out_features - first_row || out == nullptr ||
      (type != WeightType::kF16 && type != WeightType::kBF16)) {
    return cudaErrorInvalidValue;
  }
  const PackedShape shape(weights.type, weights.out_features, weights.in_features);
  return gpu::Launch(DequantizeKernel,
                     dim3(Blocks(weights.in_features, kValueThreads), static_cast<unsigned>(rows)),
                     dim3(kValueThreads), 0, stream, weights, shape, first_row,
                     type == WeightType::kBF16, out);
}

}  // namespace strata::cuda
