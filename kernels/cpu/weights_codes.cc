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

void WriteParams(PackedParams kind, const Block& block, int32_t lane, uint8_t* params) {
  WriteHalf(block.d, lane, params);
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
    for (int h = 0; h < 2 * kSuperGroups; ++h) params[32 + 16 * h + lane] = block.scales[h];
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

Decoder ReadParams(const PackedFormat& format, const uint8_t* params, int32_t lane, int32_t half) {
  const float d = HalfToFloat(HalfAt(params + 2 * lane));
  const int32_t offset = format.offset_shift < 0 ? 0 : 1 << format.offset_shift;
  switch (format.params) {
    case PackedParams::kSuperScale:
      return {d * static_cast<float>(static_cast<int8_t>(params[32 + 16 * half + lane])), 0, false,
              offset};
    case PackedParams::kSuperMinimum: {
      const float dmin = HalfToFloat(HalfAt(params + 32 + 2 * lane));
      const int32_t group = half / 2;
      return {d * static_cast<float>(params[64 + 16 * group + lane]),
              dmin * static_cast<float>(params[192 + 16 * group + lane]), true, offset};
    }
    case PackedParams::kScaleMinimum:
      return {d, HalfToFloat(HalfAt(params + 32 + 2 * lane)), false, offset};
    case PackedParams::kScale:
    case PackedParams::kNone:
      break;
  }
  return {d, 0, false, offset};
}

int32_t PlainBytes(const PackedFormat& format) { return format.code_bytes / kTileOutputs; }

}  // namespace

void PackBlock(WeightType type, const std::byte* block, int32_t lane, const TileRecord& record) {
  const PackedFormat& format = FormatOf(type);
  auto* codes = reinterpret_cast<uint8_t*>(record.codes);
  if (format.bits == 0) {
    std::memcpy(codes + PlainBytes(format) * lane, block, PlainBytes(format));
    return;
  }
  Block parts = {};
  ReadBlock(type, reinterpret_cast<const uint8_t*>(block), &parts);
  WriteParams(format.params, parts, lane, reinterpret_cast<uint8_t*>(record.params));
  const int32_t groups = format.record_values / kGroupInputs;
  for (int32_t g = 0; g < groups; ++g) {
    WriteGroup(format.bits, parts.codes + kGroupInputs * g, lane,
               codes + format.code_bytes / groups * g);
  }
}

void UnpackBlock(WeightType type, const TileRecord& record, int32_t lane, float* out) {
  const PackedFormat& format = FormatOf(type);
  const auto* codes = reinterpret_cast<const uint8_t*>(record.codes);
  if (type == WeightType::kF32) {
    std::memcpy(out, codes + 4 * lane, sizeof(*out));
    return;
  }
  if (type == WeightType::kF16) {
    *out = HalfToFloat(HalfAt(codes + 2 * lane));
    return;
  }
  if (type == WeightType::kBF16) {
    *out = std::bit_cast<float>(uint32_t{HalfAt(codes + 2 * lane)} << 16);
    return;
  }
  const int32_t groups = format.record_values / kGroupInputs;
  for (int32_t g = 0; g < groups; ++g, out += kGroupInputs) {
    uint8_t group[kGroupInputs];
    ReadGroup(format.bits, codes + format.code_bytes / groups * g, lane, group);
    for (int32_t i = 0; i < kGroupInputs; ++i) {
      const Decoder decoder =
          ReadParams(format, reinterpret_cast<const uint8_t*>(record.params), lane, 2 * g + i / 16);
      out[i] = decoder.Value(group[i]);
    }
  }
}

}  // namespace strata
