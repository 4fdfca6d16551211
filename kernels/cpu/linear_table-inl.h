#pragma once

#include <cstddef>
#include <cstdint>

// What the per-ISA bodies of LinearOps share with their caller: the packed layouts and one table of
// functions. Constants and PODs only: nothing here can be emitted into an object file.
namespace strata {

// Outputs that one tile interleaves, and inputs that share one activation scale.
inline constexpr int32_t kTileOutputs = 16;
inline constexpr int32_t kGroupInputs = 32;

// How a weight type is packed. A matrix is tiles of 16 outputs; a tile is records, one after the
// other; a record is the parameters of `record_values` consecutive inputs, then their codes in
// groups of 32 inputs (the last record of a row may have fewer groups). So a product reads memory
// as one ascending stream, which hardware prefetches to a core's full bandwidth; with parameters
// apart from codes it was a third of that, and prefetch instructions won back less than they could.
//
// Codes of a group are lines of 64 bytes whose byte 4 o + b belongs to output o:
//   nibble lines 0..3  line j: low nibble = input 4 j + b, high nibble = input 16 + 4 j + b
//   5 bits: 1 line     bit j = bit 4 of input 4 j + b                            j < 8
//   6 bits: 2 lines    line j / 4, bits 2 (j % 4) .. + 1 = bits 4, 5 of input 4 j + b
//   8 bits: 8 lines    line j = input 4 j + b
// so that a 32-bit lane holds four consecutive inputs of one output. Codes are unsigned:
//   x = scale (code - offset)   or, with minima,   x = scale code + minimum.
// Plain types: [input][output] as stored.
//
// Parameters of a record, each for 16 outputs, whole lines:
//   kScale         d half [2 groups]
//   kScaleMinimum  d half, m half
//   kSuperMinimum  d half, dmin half, scale u8 [8 groups], minimum u8 [8 groups]
//                  scale = d scale_g, minimum = -dmin minimum_g
//   kSuperScale    d half, 32 bytes unused, scale i8 [16 half groups]; scale = d scale_h
enum class PackedParams { kNone, kScale, kScaleMinimum, kSuperMinimum, kSuperScale };

struct PackedFormat {
  int32_t record_values;
  int32_t bits;          // of a code; 0: plain
  int32_t offset_shift;  // offset = 1 << offset_shift; -1: none
  PackedParams params;
  int32_t param_bytes;  // of a record
  int32_t group_bytes;  // codes of a group; plain: values of one input
};

// By WeightType, in its order.
inline constexpr int kPackedFormats = 11;
inline constexpr PackedFormat kPackedFormat[kPackedFormats] = {
    {1, 0, -1, PackedParams::kNone, 0, 64},               // F32
    {1, 0, -1, PackedParams::kNone, 0, 32},               // F16
    {1, 0, -1, PackedParams::kNone, 0, 32},               // BF16
    {64, 8, 7, PackedParams::kScale, 64, 512},            // Q8_0
    {64, 4, 3, PackedParams::kScale, 64, 256},            // Q4_0
    {32, 4, -1, PackedParams::kScaleMinimum, 64, 256},    // Q4_1
    {64, 5, 4, PackedParams::kScale, 64, 320},            // Q5_0
    {32, 5, -1, PackedParams::kScaleMinimum, 64, 320},    // Q5_1
    {256, 4, -1, PackedParams::kSuperMinimum, 320, 256},  // Q4_K
    {256, 5, -1, PackedParams::kSuperMinimum, 320, 320},  // Q5_K
    {256, 6, 5, PackedParams::kSuperScale, 320, 384},     // Q6_K
};

// Activations on their way into a product, a panel of all rows. Rows are split into groups of
// the most that an instruction set has registers for, then of falling powers of two; the panel of a
// group of R rows is one record of R rows per 32 inputs (the last one padded with zeros):
//   quantized  high i8 [R][32], low i8 [R][32], then five 4-byte arrays [R]: scale float, scale
//              times sum float, sum i32, sum of the first 16 i32, sum of the last 16 i32
//   plain      float [R][32]
// so that everything a group reads lies at constant offsets from one pointer.
//
// A quantized activation is the integer 255 high + low, |high| and |low| <= 127, times the group's
// scale: two int8 products where one would do for the memory's sake, because one is not accurate
// enough. Activations have outlier channels, and rounding a group to 127 steps of its outlier moved
// the logits of a 135M model by 3 to 10 % of their deviation; 32,512 steps leave 0.1 %.
inline constexpr int32_t kLowWeight = 255;
inline constexpr int32_t kActivationMax = 127 * kLowWeight + 127;
inline constexpr float kSmallestMax = 1e-33f;   // groups below it count as zeros
inline constexpr int32_t kQuantizedBytes = 84;  // of a row and record
inline constexpr int32_t kPlainBytes = 128;

struct PanelArgs {
  const float* x = nullptr;  // [rows][in_features]
  int32_t in_features = 0;
  int32_t rows = 0;       // of the whole panel
  int32_t first_row = 0;  // rows [first_row, last_row) are written
  int32_t last_row = 0;
  uint8_t* panel = nullptr;
};

struct MatmulArgs {
  const uint8_t* tiles = nullptr;
  size_t tile_bytes = 0;
  int32_t first_tile = 0;  // tiles [first_tile, last_tile) are computed
  int32_t last_tile = 0;
  int32_t in_features = 0;
  int32_t out_features = 0;
  const uint8_t* panel = nullptr;
  int32_t rows = 0;
  const float* bias = nullptr;  // [out_features] or null
  bool accumulate = false;
  float* y = nullptr;  // row r at y + r y_stride
  size_t y_stride = 0;
};

// One row of RopeAppend. Angles are given as factors a channel: x' = x cosine + partner sine, where
// the partner of a channel is the other one of its pair; channels that are not rotated have cosine
// 1 and sine 0.
struct RopeRowArgs {
  const float* qkv = nullptr;
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float norm_epsilon = 0;
  int32_t rope_dim = 0;
  bool halves = false;             // pairs (i, i + rope_dim / 2), else (2 i, 2 i + 1)
  const float* cosine = nullptr;   // [head_dim]
  const float* sine = nullptr;     // [head_dim], with the partner's sign
  const float* k_scale = nullptr;  // [kv_heads][head_dim] or null
  bool rotate_k = false;
  bool rotate_v = false;
  float q_factor = 1;
  float* q = nullptr;
  uint16_t* k = nullptr;  // channel c of the first head at k[16 c]
  uint16_t* v = nullptr;  // channel c of the first head at v[c]
  size_t k_stride = 0;    // in halves, from head to head
  size_t v_stride = 0;
};

// The bodies for one instruction set. Every function gives one row the same bits whatever the other
// rows; integer parts are exact, so tables differ by float rounding only.
struct LinearTable {
  void (*quantize)(const PanelArgs&) = nullptr;
  void (*copy_plain)(const PanelArgs&) = nullptr;
  void (*matmul[kPackedFormats])(const MatmulArgs&) = {};
  void (*rms_norm)(const float* x, const float* weight, int32_t width, float epsilon,
                   float* y) = nullptr;
  void (*swiglu)(const float* gate_up, int32_t width, float* y) = nullptr;
  void (*rope_row)(const RopeRowArgs&) = nullptr;
  // In place, the normalized transform of `count` heads of head_dim floats.
  void (*hadamard)(int64_t count, int32_t head_dim, float* heads) = nullptr;
};

extern const LinearTable kLinearTableScalar;
extern const LinearTable kLinearTableAvx2;
extern const LinearTable kLinearTableAvx512;

}  // namespace strata
