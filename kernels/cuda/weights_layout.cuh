#pragma once

// How PackedWeights lie in device memory (docs/CUDA.md, "Weights"): in the order in which the
// tensor cores take them, so that a lane loads 16 bytes, a warp 512 in a row, and nothing is moved
// between lanes.
//
// A tile is 16 rows; a unit is 64 columns of a tile; a record is a unit, or four for the types
// whose blocks are 256 values. Tile after tile, record after record:
//   record   codes of its units, then its parameters
// and after the tiles, for types without scales of their own, one float a row: a power of two that
// brings the row into the range of halves.
//
// mma.m16n8k16 gives lane 4 g + t of register j, half e, of A: row g + 8 (j % 2), column
// 8 (j / 2) + 2 t + e. So 16 columns are 8 values a lane, and a unit four times that: step 2 h + m
// is columns 32 h + 16 m and on. Where a unit's values lie:
//   4 bits   [lane] 4 words, one a step: bits 4 j + 16 e
//   5 bits   and then [lane] a word of fifth bits: bit 4 step + j + 16 e
//   6 bits   and then [lane] 2 words, one a half h, of upper bit pairs: bits 2 (4 m + j) + 16 e
//   8 bits   [h][lane] 4 words: word 2 m + j / 2, byte 2 (j % 2) + e
//   16 bits  [step][lane] 4 words: word j, half e
//   32 bits  [step][j / 2][lane] 4 floats: 2 (j % 2) + e
// Parameters, always of rows g and g + 8 together:
//   kScale         [h][g] d, d                  halves
//   kScaleMinimum  [h][g] d, d, m, m            halves
//   kSuperMinimum  [g] d, d, m, m  halves       [32 columns][g] scale, scale, minimum, minimum
//   bytes kSuperScale    [g] d, d  halves             [16 columns][g] scale, scale  signed bytes
// Rows and columns past the matrix have zero parameters.

#include "kernels/cuda/gpu_math.cuh"
#include "kernels/linear_types.h"

namespace strata::cuda {

inline constexpr int32_t kTileRows = 16;
inline constexpr int32_t kUnitColumns = 64;
inline constexpr int32_t kLaneBytes = 512;  // 16 bytes a lane

enum class Scaling : uint8_t {
  kNone,          // values as they are
  kRow,           // values times the row's power of two
  kScale,         // d (code - offset)
  kScaleMinimum,  // d code + m
  kSuperMinimum,  // (d scale) code - (dmin minimum)
  kSuperScale,    // (d scale) (code - offset)
};

struct PackedFormat {
  int32_t bits;
  int32_t offset;
  Scaling scaling;

  GPU_HOST_DEVICE constexpr bool Super() const {
    return scaling == Scaling::kSuperMinimum || scaling == Scaling::kSuperScale;
  }
  GPU_HOST_DEVICE constexpr int32_t RecordUnits() const { return Super() ? 4 : 1; }
  GPU_HOST_DEVICE constexpr int32_t UnitBytes() const { return bits * 128; }
  GPU_HOST_DEVICE constexpr int32_t ParamsOffset() const { return RecordUnits() * UnitBytes(); }
  GPU_HOST_DEVICE constexpr int32_t RecordBytes() const {
    return ParamsOffset() + (scaling == Scaling::kScale          ? 64
                             : scaling == Scaling::kScaleMinimum ? 128
                             : scaling == Scaling::kSuperMinimum ? 320
                             : scaling == Scaling::kSuperScale   ? 288
                                                                 : 0);
  }
};

GPU_HOST_DEVICE constexpr PackedFormat FormatOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return {32, 0, Scaling::kRow};
    case WeightType::kF16:
      return {16, 0, Scaling::kNone};
    case WeightType::kBF16:
      return {16, 0, Scaling::kRow};
    case WeightType::kQ8_0:
      return {8, 128, Scaling::kScale};  // stored as code + 128
    case WeightType::kQ4_0:
      return {4, 8, Scaling::kScale};
    case WeightType::kQ4_1:
      return {4, 0, Scaling::kScaleMinimum};
    case WeightType::kQ5_0:
      return {5, 16, Scaling::kScale};
    case WeightType::kQ5_1:
      return {5, 0, Scaling::kScaleMinimum};
    case WeightType::kQ4_K:
      return {4, 0, Scaling::kSuperMinimum};
    case WeightType::kQ5_K:
      return {5, 0, Scaling::kSuperMinimum};
    case WeightType::kQ6_K:
      return {6, 32, Scaling::kSuperScale};
  }
  return {0, 0, Scaling::kNone};
}

// The sizes of one matrix.
struct PackedShape {
  PackedFormat format;
  int32_t tiles;
  int32_t units;  // 64 columns each, the last may be partly or wholly past the matrix
  int64_t tile_bytes;

  GPU_HOST_DEVICE PackedShape(WeightType type, int32_t out_features, int32_t in_features)
      : format(FormatOf(type)) {
    const int32_t columns = kUnitColumns * format.RecordUnits();
    const int32_t records = (in_features + columns - 1) / columns;
    tiles = (out_features + kTileRows - 1) / kTileRows;
    units = records * format.RecordUnits();
    tile_bytes = int64_t{1} * records * format.RecordBytes();
  }
  GPU_HOST_DEVICE int64_t RowScales() const { return tiles * tile_bytes; }  // offset
  GPU_HOST_DEVICE int64_t Bytes() const {
    return RowScales() + (format.scaling == Scaling::kRow ? int64_t{4} * kTileRows * tiles : 0);
  }
};

// A power of two and its inverse, such that the greatest magnitude times `scale` is in
// [2^14, 2^15): far from the ends of the halves' range. 1 where there is nothing to scale by.
struct PowerScale {
  float scale;
  float inverse;
};
GPU_DEVICE PowerScale PowerScaleOf(float greatest) {
  if (!(greatest > 0)) return {1.0f, 1.0f};
  int32_t exponent = static_cast<int32_t>(__float_as_uint(greatest) >> 23);
  exponent = max(15, min(exponent, 254));  // both results stay normal
  return {__uint_as_float(static_cast<uint32_t>(268 - exponent) << 23),
          __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23)};
}

// Every second 16 bits of a float: its value as BF16.
GPU_DEVICE float BF16ToFloat(uint32_t bits) { return __uint_as_float(bits << 16); }

}  // namespace strata::cuda
