#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/linear_types.h"

// Products with weights kept at their stored size, and what goes with such weights. Conventions as
// in linear_launch.h.
//
// One order of addition for one row and for many: LaunchMatmul has a kernel for few rows and one
// for many, and both multiply the same tensor-core tiles in the same order, so a row's bits depend
// on nothing but the row and the matrix. Weights enter exactly (codes as integers, scales in
// float), activations as two halves each (22 bits of the row's greatest), sums are float.
namespace strata::cuda {

// Rows of one type, rearranged for the tensor cores (docs/CUDA.md). A stacked matrix is several of
// them: one LaunchMatmul each, into neighbouring columns of y.
struct PackedWeights {
  WeightType type = WeightType::kF32;
  int32_t out_features = 0;
  int32_t in_features = 0;
  std::byte* data = nullptr;  // device memory at a multiple of 256 bytes, PackedWeightBytes of it
};

// 0 for an unknown type or sizes outside 1..kMaxFeatures or not in whole blocks.
size_t PackedWeightBytes(WeightType type, int32_t out_features, int32_t in_features);

// Rearranges rows [first_row, first_row + rows) of the file's matrix; `source`, device memory or
// mapped, holds just these rows as the file does, so a large matrix can pass through a small
// staging buffer. first_row is a multiple of 16, and so is `rows` unless these are the last rows.
// Once all rows were packed, every byte of the destination is written.
cudaError_t LaunchPackWeights(const std::byte* source, int32_t first_row, int32_t rows,
                              const PackedWeights& to, cudaStream_t stream);

// Bytes of the panel that LaunchPrepareActivations writes: about 4.2 a value.
size_t ActivationPanelBytes(int32_t rows, int32_t in_features);

// Lays x[rows][in_features] out for LaunchMatmul; one panel serves every matrix of these inputs.
// panel: at a multiple of 256 bytes.
cudaError_t LaunchPrepareActivations(const float* x, int32_t rows, int32_t in_features,
                                     std::byte* panel, cudaStream_t stream);

// Which kernel multiplies; the result is the same. kAuto is for everything but tests and measuring.
enum class MatmulKernel : uint8_t { kAuto, kFewRows, kManyRows };

struct MatmulArgs {
  PackedWeights weights;
  const std::byte* panel = nullptr;  // of exactly `rows` rows
  int32_t rows = 0;
  const float* bias = nullptr;  // [out_features] or null
  bool accumulate = false;
  float* y = nullptr;    // row r at y + r * y_stride
  int32_t y_stride = 0;  // at least out_features
  MatmulKernel kernel = MatmulKernel::kAuto;
};

// y[r][o] = (y[r][o] if accumulate, else 0) + (x W^T)[r][o] (+ bias[o]).
cudaError_t LaunchMatmul(const MatmulArgs& args, cudaStream_t stream);

// out[i][in_features] = row ids[i] - first_row of `weights`, bit for bit the value of its type, for
// those ids in [first_row, first_row + out_features); rows of other ids are left alone, so a
// stacked matrix takes one call a part. The caller has checked the ids.
cudaError_t LaunchEmbedRows(const PackedWeights& weights, int32_t first_row, const int32_t* ids,
                            int32_t count, float* out, cudaStream_t stream);

// Rows [first_row, first_row + rows) as F16 or BF16 (rounded to nearest), row-major, for a library
// that multiplies such. `type` is kF16 or kBF16.
cudaError_t LaunchDequantize(const PackedWeights& weights, int32_t first_row, int32_t rows,
                             WeightType type, uint16_t* out, cudaStream_t stream);

}  // namespace strata::cuda
