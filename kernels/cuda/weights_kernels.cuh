#pragma once

// Packing of weights, and reading packed ones value by value.

#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/weights_file.cuh"

namespace strata::cuda {

inline constexpr int32_t kPackWarps = 4;
inline constexpr int32_t kValueThreads = 256;  // a thread a value

// The file's rows, of which [first, first + count) are here.
struct FileRows {
  WeightType type;
  int32_t block_values;
  int32_t block_bytes;
  int32_t first;
  int32_t count;
  int32_t in_features;
  const std::byte* data;

  // The block that holds a value, or null past the matrix.
  GPU_DEVICE const uint8_t* Block(int32_t row, int32_t column) const {
    if (row >= first + count || column >= in_features) return nullptr;
    const int64_t row_bytes = int64_t{1} * (in_features / block_values) * block_bytes;
    return reinterpret_cast<const uint8_t*>(data) + (row - first) * row_bytes +
           int64_t{1} * (column / block_values) * block_bytes;
  }
  GPU_DEVICE uint32_t Code(int32_t row, int32_t column) const {
    const uint8_t* block = Block(row, column);
    return block == nullptr ? 0 : FileCode(type, block, column % block_values);
  }
  // A plain value's bits.
  GPU_DEVICE uint32_t Plain(int32_t row, int32_t column) const {
    const uint8_t* block = Block(row, column);
    if (block == nullptr) return 0;
    return HalfAt(block) | (type == WeightType::kF32 ? HalfAt(block + 2) << 16 : 0);
  }
};

// Row and column, from a tile and a unit, of half e of register j at a step.
GPU_DEVICE int32_t RowOf(int32_t tile, int32_t lane, int32_t j) {
  return kTileRows * tile + lane / 4 + j % 2 * 8;
}
GPU_DEVICE int32_t ColumnOf(int32_t unit, int32_t step, int32_t lane, int32_t j, int32_t e) {
  return kUnitColumns * unit + 16 * step + j / 2 * 8 + lane % 4 * 2 + e;
}

GPU_DEVICE void PackCodes(const FileRows& file, int32_t bits, int32_t tile, int32_t unit,
                          int32_t lane, std::byte* to) {
  uint32_t fifth = 0, upper = 0;
#pragma unroll 1  // few registers rather than few instructions: this runs once a load
  for (int32_t step = 0; step < 4; ++step) {
    uint64_t word = 0;
#pragma unroll 1
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t j = i / 2, e = i % 2;
      const uint32_t code = file.Code(RowOf(tile, lane, j), ColumnOf(unit, step, lane, j, e));
      word |= static_cast<uint64_t>(bits == 8 ? code : code & 15)
              << (bits == 8 ? 8 * i : 4 * j + 16 * e);
      if (bits == 5) fifth |= code >> 4 << (4 * step + j + 16 * e);
      if (bits == 6) upper |= code >> 4 << (2 * (step % 2 * 4 + j) + 16 * e);
    }
    if (bits == 8) {
      const int64_t at = kLaneBytes * (step / 2) + 16 * lane + 8 * (step % 2);
      *reinterpret_cast<uint64_t*>(to + at) = word;
      continue;
    }
    reinterpret_cast<uint32_t*>(to + 16 * lane)[step] = static_cast<uint32_t>(word);
    if (bits == 6 && step % 2 == 1) {
      reinterpret_cast<uint32_t*>(to + kLaneBytes + 8 * lane)[step / 2] = upper;
      upper = 0;
    }
  }
  if (bits == 5) *reinterpret_cast<uint32_t*>(to + kLaneBytes + 4 * lane) = fifth;
}

GPU_DEVICE void PackPlain(const FileRows& file, int32_t bits, int32_t tile, int32_t unit,
                          int32_t lane, std::byte* to) {
  for (int32_t step = 0; step < 4; ++step) {
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t j = i / 2, e = i % 2;
      const uint32_t value = file.Plain(RowOf(tile, lane, j), ColumnOf(unit, step, lane, j, e));
      if (bits == 32) {
        std::byte* floats = to + kLaneBytes * (2 * step + j / 2) + 16 * lane;
        reinterpret_cast<uint32_t*>(floats)[j % 2 * 2 + e] = value;
      } else {
        std::byte* halves = to + kLaneBytes * step + 16 * lane;
        reinterpret_cast<uint16_t*>(halves)[i] = static_cast<uint16_t>(value);
      }
    }
  }
}

// The parameters of row `row` (index g and upper in the tile) for the 64 columns of a unit.
GPU_DEVICE void PackParams(const FileRows& file, const PackedFormat& format, int32_t row,
                           int32_t unit, std::byte* params) {
  const int32_t g = row % 8, upper = row / 8 % 2;
  auto* halves = reinterpret_cast<uint16_t*>(params);
  auto* bytes = reinterpret_cast<uint8_t*>(params);
  const int32_t within = unit % format.RecordUnits();
  for (int32_t h = 0; h < 2; ++h) {
    const uint8_t* block = file.Block(row, kUnitColumns * unit + 32 * h);
    const auto d = static_cast<uint16_t>(block == nullptr ? 0 : FileScale(file.type, block));
    const auto m = static_cast<uint16_t>(block == nullptr ? 0 : FileMinimum(block));
    const int32_t sub = 2 * within + h;  // of 32 columns in the record
    switch (format.scaling) {
      case Scaling::kScale:
        halves[16 * h + 2 * g + upper] = d;
        break;
      case Scaling::kScaleMinimum:
        halves[32 * h + 4 * g + upper] = d;
        halves[32 * h + 4 * g + 2 + upper] = m;
        break;
      case Scaling::kSuperMinimum:
        if (sub == 0) {  // the record's first unit writes what its units share
          halves[4 * g + upper] = d;
          halves[4 * g + 2 + upper] = m;
        }
        bytes[64 + 32 * sub + 4 * g + upper] =
            static_cast<uint8_t>(block == nullptr ? 0 : FileSubScale(block, sub));
        bytes[64 + 32 * sub + 4 * g + 2 + upper] =
            static_cast<uint8_t>(block == nullptr ? 0 : FileSubMinimum(block, sub));
        break;
      case Scaling::kSuperScale:
        if (sub == 0) halves[2 * g + upper] = d;
        for (int32_t i = 2 * sub; i < 2 * sub + 2; ++i) {
          bytes[32 + 16 * i + 2 * g + upper] = block == nullptr ? 0 : block[192 + i];
        }
        break;
      case Scaling::kNone:
      case Scaling::kRow:
        break;
    }
  }
}

// Where a unit's codes and its record's parameters are in a tile.
struct UnitPlace {
  int64_t codes;
  int64_t params;
};
GPU_DEVICE UnitPlace PlaceOf(const PackedFormat& format, int32_t unit) {
  const int64_t record = int64_t{1} * (unit / format.RecordUnits()) * format.RecordBytes();
  return {record + unit % format.RecordUnits() * format.UnitBytes(),
          record + format.ParamsOffset()};
}

// Grid: x over the units in fours, y = tiles of the rows that are here. A warp a unit.
__global__ void __launch_bounds__(kPackWarps * 32)
    PackWeightsKernel(const __grid_constant__ FileRows file,
                      const __grid_constant__ PackedShape shape, std::byte* packed) {
  const int32_t unit = blockIdx.x * kPackWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (unit >= shape.units) return;
  const int32_t tile = file.first / kTileRows + blockIdx.y;
  std::byte* to = packed + tile * shape.tile_bytes;
  const UnitPlace place = PlaceOf(shape.format, unit);
  if (shape.format.bits >= 16) {
    PackPlain(file, shape.format.bits, tile, unit, lane, to + place.codes);
    return;
  }
  PackCodes(file, shape.format.bits, tile, unit, lane, to + place.codes);
  if (lane < kTileRows) {
    PackParams(file, shape.format, kTileRows * tile + lane, unit, to + place.params);
  }
}

// A warp a row of the tiles: the power of two that brings it into the range of halves.
__global__ void __launch_bounds__(kPackWarps * 32)
    PackRowScalesKernel(const __grid_constant__ FileRows file, int32_t rows, float* scales) {
  const int32_t row = file.first + blockIdx.x * kPackWarps + threadIdx.x / 32;
  if (row >= file.first + rows) return;
  float greatest = 0;
  for (int32_t c = threadIdx.x % 32; c < file.in_features; c += 32) {
    const uint32_t bits = file.Plain(row, c);
    const float value = file.type == WeightType::kF32 ? __uint_as_float(bits) : BF16ToFloat(bits);
    greatest = fmaxf(greatest, fabsf(value));
  }
  greatest = gpu::WarpMax(greatest);
  if (threadIdx.x % 32 == 0) scales[row] = PowerScaleOf(greatest).scale;
}

// The code of a value at step, lane, j, e of a unit.
GPU_DEVICE uint32_t PackedCode(int32_t bits, const std::byte* codes, int32_t step, int32_t lane,
                               int32_t j, int32_t e) {
  const auto* words = reinterpret_cast<const uint32_t*>(codes);
  if (bits == 8) {
    const uint32_t word = words[128 * (step / 2) + 4 * lane + step % 2 * 2 + j / 2];
    return word >> (8 * (j % 2 * 2 + e)) & 255;
  }
  uint32_t code = words[4 * lane + step] >> (4 * j + 16 * e) & 15;
  if (bits == 5) code |= (words[128 + lane] >> (4 * step + j + 16 * e) & 1) << 4;
  if (bits == 6) {
    const uint32_t word = words[128 + 2 * lane + step / 2];
    code |= (word >> (2 * (step % 2 * 4 + j) + 16 * e) & 3) << 4;
  }
  return code;
}

// What a code means. Every product is exact and the sum rounds once, so the value is the type's.
GPU_DEVICE float ScaledCode(const PackedFormat& format, const std::byte* params, int32_t unit,
                            int32_t step, int32_t row, uint32_t code) {
  const int32_t g = row % 8, upper = row / 8 % 2, h = step / 2;
  const auto* halves = reinterpret_cast<const uint16_t*>(params);
  const auto* bytes = reinterpret_cast<const uint8_t*>(params);
  const int32_t step_of_record = 4 * (unit % format.RecordUnits()) + step;
  const float x = static_cast<float>(static_cast<int32_t>(code) - format.offset);
  switch (format.scaling) {
    case Scaling::kScale:
      return __fmul_rn(gpu::HalfBitsToFloat(halves[16 * h + 2 * g + upper]), x);
    case Scaling::kScaleMinimum:
      return __fadd_rn(__fmul_rn(gpu::HalfBitsToFloat(halves[32 * h + 4 * g + upper]), x),
                       gpu::HalfBitsToFloat(halves[32 * h + 4 * g + 2 + upper]));
    case Scaling::kSuperMinimum: {
      const uint8_t* sub = bytes + 64 + 32 * (step_of_record / 2) + 4 * g;
      const float scale = __fmul_rn(gpu::HalfBitsToFloat(halves[4 * g + upper]), sub[upper]);
      const float minimum =
          __fmul_rn(gpu::HalfBitsToFloat(halves[4 * g + 2 + upper]), sub[2 + upper]);
      return __fsub_rn(__fmul_rn(scale, x), minimum);
    }
    case Scaling::kSuperScale: {
      const auto sub = static_cast<int8_t>(bytes[32 + 16 * step_of_record + 2 * g + upper]);
      return __fmul_rn(__fmul_rn(gpu::HalfBitsToFloat(halves[2 * g + upper]), sub), x);
    }
    case Scaling::kNone:
    case Scaling::kRow:
      break;
  }
  return 0;
}

// One value of the matrix, bit for bit what its type makes of the file's block.
GPU_DEVICE float PackedValue(WeightType type, const PackedShape& shape, const std::byte* packed,
                             int32_t row, int32_t column) {
  const PackedFormat& format = shape.format;
  const int32_t unit = column / kUnitColumns, step = column % kUnitColumns / 16, c = column % 16;
  const int32_t lane = row % 8 * 4 + c % 8 / 2, j = c / 8 * 2 + row / 8 % 2, e = c % 2;
  const UnitPlace place = PlaceOf(format, unit);
  const std::byte* tile = packed + row / kTileRows * shape.tile_bytes;
  const std::byte* codes = tile + place.codes;
  if (format.bits == 32) {
    const std::byte* floats = codes + kLaneBytes * (2 * step + j / 2) + 16 * lane;
    return reinterpret_cast<const float*>(floats)[j % 2 * 2 + e];
  }
  if (format.bits == 16) {
    const std::byte* halves = codes + kLaneBytes * step + 16 * lane;
    const uint32_t bits = reinterpret_cast<const uint16_t*>(halves)[2 * j + e];
    return type == WeightType::kBF16 ? BF16ToFloat(bits) : gpu::HalfBitsToFloat(bits);
  }
  return ScaledCode(format, tile + place.params, unit, step, row,
                    PackedCode(format.bits, codes, step, lane, j, e));
}

// Grid: x over the columns, y = ids.
__global__ void __launch_bounds__(kValueThreads)
    EmbedRowsKernel(const __grid_constant__ PackedWeights weights,
                    const __grid_constant__ PackedShape shape, int32_t first_row,
                    const int32_t* ids, float* out) {
  const int32_t column = blockIdx.x * kValueThreads + threadIdx.x;
  const int64_t row = int64_t{ids[blockIdx.y]} - first_row;
  if (column >= weights.in_features || row < 0 || row >= weights.out_features) return;
  out[size_t{1} * blockIdx.y * weights.in_features + column] =
      PackedValue(weights.type, shape, weights.data, static_cast<int32_t>(row), column);
}

// Grid: x over the columns, y = rows.
__global__ void __launch_bounds__(kValueThreads)
    DequantizeKernel(const __grid_constant__ PackedWeights weights,
                     const __grid_constant__ PackedShape shape, int32_t first_row, bool bf16,
                     uint16_t* out) {
  const int32_t column = blockIdx.x * kValueThreads + threadIdx.x;
  if (column >= weights.in_features) return;
  const float value =
      PackedValue(weights.type, shape, weights.data, first_row + blockIdx.y, column);
  out[size_t{1} * blockIdx.y * weights.in_features + column] = gpu::Narrow(value, bf16);
}

}  // namespace strata::cuda
