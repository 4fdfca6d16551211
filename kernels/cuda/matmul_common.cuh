#pragma once

// What the kernels of a product (matmul_launch.h) share.
//
// The columns of a matrix fall into at most eight slices, by their number alone. An output is the
// sum of its slices' sums, in order. FewRowsKernel gives a slice to a warp, so that 16 rows of
// weights have up to eight warps loading at once; ManyRowsKernel goes through the slices one after
// the other, with weights kept for 32 rows of activations. Same bits.

#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/matmul_tile.cuh"

namespace strata::cuda {

inline constexpr int32_t kSlicesMax = 8;
inline constexpr int32_t kFewRows = 8;  // rows of activations of a block of FewRowsKernel

// A panel: [row][32 columns][hi 64 bytes, lo 64 bytes], then sums [row][32 columns], then the
// inverse of each row's power of two. In 64 bytes: half 8 t + 4 m + 2 i + e is column
// 16 m + 8 i + 2 t + e, so that a lane's 16 bytes are its registers of operand B.
struct PanelShape {
  int32_t rows;
  int32_t groups;  // of 32 columns: two a unit of weights

  GPU_HOST_DEVICE PanelShape(int32_t row_count, int32_t in_features)
      : rows(row_count), groups((in_features + 63) / 64 * 2) {}
  GPU_HOST_DEVICE int64_t Sums() const { return int64_t{128} * rows * groups; }
  GPU_HOST_DEVICE int64_t Inverses() const { return Sums() + int64_t{4} * rows * groups; }
  GPU_HOST_DEVICE int64_t Bytes() const { return Inverses() + int64_t{4} * rows; }
};

// Units of one slice.
GPU_HOST_DEVICE int32_t SliceUnits(int32_t units) { return (units + kSlicesMax - 1) / kSlicesMax; }

// Where a product's results go and what is done to them on the way.
struct Output {
  const float* inverses;    // of the rows of activations
  const float* row_scales;  // of the rows of weights, or null
  const float* bias;
  bool accumulate;
  float* y;
  int32_t y_stride;
  int32_t rows;
  int32_t out_features;

  GPU_DEVICE void Store(int32_t row, int32_t o, float sum) const {
    if (row >= rows || o >= out_features) return;
    float value = __fmul_rn(sum, inverses[row]);
    // A power of two: the division is exact.
    if (row_scales != nullptr) value = __fdiv_rn(value, row_scales[o]);
    if (bias != nullptr) value = __fadd_rn(value, bias[o]);
    float* to = y + size_t{1} * row * y_stride + o;
    *to = accumulate ? __fadd_rn(*to, value) : value;
  }
};

GPU_DEVICE void LoadRowScales(const Output& output, int32_t tile, int32_t lane,
                              float (&row_scale)[2]) {
  row_scale[0] = row_scale[1] = 1.0f;
  if (output.row_scales == nullptr) return;
  row_scale[0] = output.row_scales[kTileRows * tile + lane / 4];
  row_scale[1] = output.row_scales[kTileRows * tile + lane / 4 + 8];
}

struct MatmulParams {
  const std::byte* weights;
  int64_t tile_bytes;
  int32_t tiles;
  int32_t units;
  const std::byte* panel;
  const float* sums;
  int32_t groups;
  Output output;
};

// The same product by either kernel. `params` is checked. In files of their own: a kernel for each
// type of weights takes the compiler long.
cudaError_t LaunchFewRows(WeightType type, const MatmulParams& params, cudaStream_t stream);
cudaError_t LaunchManyRows(WeightType type, const MatmulParams& params, cudaStream_t stream);

// launch.operator()<kType>() of a type known when the program runs.
template <class Launch>
cudaError_t ForWeightType(WeightType type, const Launch& launch) {
  switch (type) {
    case WeightType::kF32:
      return launch.template operator()<WeightType::kF32>();
    case WeightType::kF16:
      return launch.template operator()<WeightType::kF16>();
    case WeightType::kBF16:
      return launch.template operator()<WeightType::kBF16>();
    case WeightType::kQ8_0:
      return launch.template operator()<WeightType::kQ8_0>();
    case WeightType::kQ4_0:
      return launch.template operator()<WeightType::kQ4_0>();
    case WeightType::kQ4_1:
      return launch.template operator()<WeightType::kQ4_1>();
    case WeightType::kQ5_0:
      return launch.template operator()<WeightType::kQ5_0>();
    case WeightType::kQ5_1:
      return launch.template operator()<WeightType::kQ5_1>();
    case WeightType::kQ4_K:
      return launch.template operator()<WeightType::kQ4_K>();
    case WeightType::kQ5_K:
      return launch.template operator()<WeightType::kQ5_K>();
    case WeightType::kQ6_K:
      return launch.template operator()<WeightType::kQ6_K>();
  }
  return cudaErrorInvalidValue;
}

}  // namespace strata::cuda
