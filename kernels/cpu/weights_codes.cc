#include "kernels/cpu/weights_codes.h"

#include <bit>
#include <cstring>

#include "base/half.h"

namespace strata {
namespace {

constexpr int kSuperGroups = 8;  // groups of 32 values in a block of 256

const PackedFormat& FormatOf(WeightType type) { return kPackedFormat[static_cast<int>(type)]; }

// A block of the file, taken apart: unsigned codes and, one for all or one a group, parameters.
struct Block {
  uint8_t codes[256];
  Half d;
  Half minimum;        // m, or dmin of the K types
  uint8_t scales[16];  // of groups (Q4_K, Q5_K) or signed ones of half groups (Q6_K)
  uint8_t minima[kSuperGroups];
};

Half HalfAt(const uint8_t* p) {
  Half h;
  std::memcpy(&h, p, sizeof(h));
  return h;
}

void ReadNibbles(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = p[i] & 15;
    codes[i + 16] = p[i] >> 4;
  }
}

void AddFifthBits(const uint8_t* p, uint8_t* codes) {
  uint32_t high;
  std::memcpy(&high, p, sizeof(high));
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((high >> i & 1u) << 4);
}

void ReadSubScales(const uint8_t* p, Block* block) {
  for (int j = 0; j < 4; ++j) {
    block->scales[j] = p[j] & 63;
    block->minima[j] = p[j + 4] & 63;
    block->scales[j + 4] = static_cast<uint8_t>((p[j + 8] & 15) | (p[j] >> 6) << 4);
    block->minima[j + 4] = static_cast<uint8_t>(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
  }
}

void ReadSuperNibbles(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 256; ++i) codes[i] = p[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
}

void ReadQ6_K(const uint8_t* p, Block* block) {
  for (int half = 0; half < 2; ++half, p += 64) {
    const uint8_t* high = p + 128 - 32 * half;
    uint8_t* codes = block->codes + 128 * half;
    for (int i = 0; i < 32; ++i) {
      const int upper = high[i];
      codes[i] = static_cast<uint8_t>((p[i] & 15) | (upper & 3) << 4);
      codes[i + 32] = static_cast<uint8_t>((p[i + 32] & 15) | (upper >> 2 & 3) << 4);
      codes[i + 64] = static_cast<uint8_t>(p[i] >> 4 | (upper >> 4 & 3) << 4);
      codes[i + 96] = static_cast<uint8_t>(p[i + 32] >> 4 | (upper >> 6) << 4);
    }
  }
}

void ReadBlock(WeightType type, const uint8_t* p, Block* block) {
  block->d = HalfAt(p);
  switch (type) {
    case WeightType::kQ8_0:
      for (int i = 0; i < 32; ++i) block->codes[i] = p[2 + i] ^ 0x80;
      return;
    case WeightType::kQ4_0:
      ReadNibbles(p + 2, block->codes);
      return;
    case WeightType::kQ4_1:
      block->minimum = HalfAt(p + 2);
      ReadNibbles(p + 4, block->codes);
      return;
    case WeightType::kQ5_0:
      ReadNibbles(p + 6, block->codes);
      AddFifthBits(p + 2, block->codes);
      return;
    case WeightType::kQ5_1:
      block->minimum = HalfAt(p + 2);
      ReadNibbles(p + 8, block->codes);
      AddFifthBits(p + 4, block->codes);
      return;
    case WeightType::kQ4_K:
      block->minimum = HalfAt(p + 2);
      ReadSubScales(p + 4, block);
      ReadSuperNibbles(p + 16, block->codes);
      return;
    case WeightType::kQ5_K:
      block->minimum = HalfAt(p + 2);
      ReadSubScales(p + 4, block);
      ReadSuperNibbles(p + 48, block->codes);
      for (int i = 0; i < 256; ++i) {
        block->codes[i] |= static_cast<uint8_t>((p[16 + i % 32] >> (i / 32) & 1) << 4);
      }
      return;
    case WeightType::kQ6_K:
      block->d = HalfAt(p + 208);
      std::memcpy(block->scales, p + 192, 16);
      ReadQ6_K(p, block);
      return;
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      return;  // plain: packed as they are
  }
}

// Codes of one output and 32 inputs to and from the lines of their tile.
void WriteGroup(int32_t bits, const uint8_t* codes, int32_t lane, uint8_t* lines) {
  uint8_t* out = lines + 4 * lane;
  if (bits == 8) {
    for (int i = 0; i < 32; ++i) out[i / 4 * 64 + i % 4] = codes[i];
    return;
  }
  for (int i = 0; i < 16; ++i) {
    out[i / 4 * 64 + i % 4] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
  }
  for (int b = 0; b < 4; ++b) {
    int upper[2] = {0, 0};
    for (int j = 0; j < 8; ++j) {
      if (bits == 5) upper[0] |= codes[4 * j + b] >> 4 << j;
      if (bits == 6) upper[j / 4] |= codes[4 * j + b] >> 4 << (2 * (j % 4));
    }
    if (bits >= 5) out[256 + b] = static_cast<uint8_t>(upper[0]);
    if (bits == 6) out[320 + b] = static_cast<uint8_t>(upper[1]);
  }
}

void ReadGroup(int32_t bits, const uint8_t* lines, int32_t lane, uint8_t* codes) {
  const uint8_t* in = lines + 4 * lane;
  for (int i = 0; i < 32; ++i) {
    const int j = i / 4, b = i % 4;
    int code = bits == 8 ? in[64 * j + b] : in[64 * (j % 4) + b] >> (j / 4 * 4) & 15;
    if (bits == 5) code |= (in[256 + b] >> j & 1) << 4;
    if (bits == 6) code |= (in[256 + 64 * (j / 4) + b] >> (2 * (j % 4)) & 3) << 4;
    codes[i] = static_cast<uint8_t>(code);
  }
}

void WriteHalf(Half h, int32_t lane, uint8_t* halves) {
  std::memcpy(halves + 2 * lane, &h, sizeof(h));
}

void WriteParams(PackedParams kind, const Block& block, int32_t group, int32_t lane,
                 uint8_t* params) {
  WriteHalf(block.d, lane, kind == PackedParams::kScale ? params + 32 * group : params);
  if (kind == PackedParams::kScaleMinimum || kind == PackedParams::kSuperMinimum) {
    WriteHalf(block.minimum, lane, params + 32);
  }
  if (kind == PackedParams::kSuperMinimum) {
    for (int g = 0; g < kSuperGroups; ++g) {
      params[64 + 16 * g + lane] = block.scales[g];
      params[192 + 16 * g + lane] = block.minima[g];
    }
  }
  if (kind == PackedParams::kSuperScale) {
    for (int h = 0; h < 2 * kSuperGroups; ++h) params[64 + 16 * h + lane] = block.scales[h];
  }
}

// What turns the codes of 16 inputs into values. The products are formed in the order in which the
// types are defined, so that the values are theirs to the bit.
struct Decoder {
  float scale;
  float minimum;  // subtracted by the K types, added by the others
  bool subtract;
  int32_t offset;

  float Value(int code) const {
    const float x = scale * static_cast<float>(code - offset);
    if (offset != 0) return x;
    return subtract ? x - minimum : x + minimum;
  }
};

Decoder ReadParams(const PackedFormat& format, const uint8_t* params, int32_t half, int32_t lane) {
  const int32_t group = half / 2;
  const float d = HalfToFloat(HalfAt(params + 2 * lane));
  const int32_t offset = format.offset_shift < 0 ? 0 : 1 << format.offset_shift;
  switch (format.params) {
    case PackedParams::kScale:
      return {HalfToFloat(HalfAt(params + 32 * group + 2 * lane)), 0, false, offset};
    case PackedParams::kScaleMinimum:
      return {d, HalfToFloat(HalfAt(params + 32 + 2 * lane)), false, offset};
    case PackedParams::kSuperMinimum: {
      const float dmin = HalfToFloat(HalfAt(params + 32 + 2 * lane));
      return {d * static_cast<float>(params[64 + 16 * group + lane]),
              dmin * static_cast<float>(params[192 + 16 * group + lane]), true, offset};
    }
    case PackedParams::kSuperScale:
      return {d * static_cast<float>(static_cast<int8_t>(params[64 + 16 * half + lane])), 0, false,
              offset};
    case PackedParams::kNone:
      break;
  }
  return {};
}

// Where a block lies in its tile: its record, and its first group there.
struct BlockPlace {
  size_t params;  // offset of the record in the tile
  size_t codes;   // offset of the block's first group
  int32_t group;
};

BlockPlace PlaceOf(const PackedFormat& format, int32_t block_values, int32_t index) {
  const int32_t groups = format.record_values / kGroupInputs;
  const int32_t first = index * (block_values / kGroupInputs);
  BlockPlace place;
  place.params = size_t{1} * (first / groups) * (format.param_bytes + groups * format.group_bytes);
  place.group = first % groups;
  place.codes = place.params + format.param_bytes + size_t{1} * place.group * format.group_bytes;
  return place;
}

}  // namespace

size_t TileBytes(WeightType type, int32_t in_features) {
  const PackedFormat& format = FormatOf(type);
  if (format.bits == 0) return size_t{1} * in_features * format.group_bytes;
  const size_t records =
      (size_t{1} * in_features + format.record_values - 1) / format.record_values;
  return records * format.param_bytes + size_t{1} * in_features / kGroupInputs * format.group_bytes;
}

void PackBlock(WeightType type, const std::byte* block, int32_t index, int32_t lane,
               std::byte* tile) {
  const PackedFormat& format = FormatOf(type);
  const WeightTypeInfo& info = InfoOf(type);
  auto* bytes = reinterpret_cast<uint8_t*>(tile);
  if (format.bits == 0) {
    std::memcpy(bytes + size_t{1} * format.group_bytes * index + info.block_bytes * lane, block,
                info.block_bytes);
    return;
  }
  Block parts = {};
  ReadBlock(type, reinterpret_cast<const uint8_t*>(block), &parts);
  const BlockPlace place = PlaceOf(format, info.block_values, index);
  WriteParams(format.params, parts, place.group, lane, bytes + place.params);
  for (int32_t g = 0; g < info.block_values / kGroupInputs; ++g) {
    WriteGroup(format.bits, parts.codes + kGroupInputs * g, lane,
               bytes + place.codes + size_t{1} * format.group_bytes * g);
  }
}

void UnpackBlock(WeightType type, const std::byte* tile, int32_t index, int32_t lane, float* out) {
  const PackedFormat& format = FormatOf(type);
  const auto* bytes = reinterpret_cast<const uint8_t*>(tile);
  const uint8_t* plain = bytes + size_t{1} * format.group_bytes * index;
  if (type == WeightType::kF32) {
    std::memcpy(out, plain + 4 * lane, sizeof(*out));
    return;
  }
  if (type == WeightType::kF16) {
    *out = HalfToFloat(HalfAt(plain + 2 * lane));
    return;
  }
  if (type == WeightType::kBF16) {
    *out = std::bit_cast<float>(uint32_t{HalfAt(plain + 2 * lane)} << 16);
    return;
  }
  const int32_t block_values = InfoOf(type).block_values;
  const BlockPlace place = PlaceOf(format, block_values, index);
  for (int32_t i = 0; i < block_values; i += 16) {
    const int32_t group = i / kGroupInputs;
    uint8_t codes[kGroupInputs];
    ReadGroup(format.bits, bytes + place.codes + size_t{1} * format.group_bytes * group, lane,
              codes);
    const Decoder decoder =
        ReadParams(format, bytes + place.params, 2 * (place.group + group) + i / 16 % 2, lane);
    for (int32_t j = 0; j < 16; ++j) out[i + j] = decoder.Value(codes[i % kGroupInputs + j]);
  }
}

}  // namespace strata
