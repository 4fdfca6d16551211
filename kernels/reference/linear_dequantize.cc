#include "kernels/reference/linear_dequantize.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace strata {
namespace {

const uint8_t* Bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

float HalfAt(const uint8_t* p) {
  Half h;
  std::memcpy(&h, p, sizeof(h));
  return HalfToFloat(h);
}

uint32_t Word32(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

void BlockF32(const uint8_t* p, float* out) { std::memcpy(out, p, sizeof(*out)); }

void BlockF16(const uint8_t* p, float* out) { *out = HalfAt(p); }

void BlockBF16(const uint8_t* p, float* out) {
  uint16_t upper;
  std::memcpy(&upper, p, sizeof(upper));
  *out = std::bit_cast<float>(uint32_t{upper} << 16);
}

// Q8_0: d half, 32 signed bytes; x = d q.
void BlockQ8_0(const uint8_t* p, float* out) {
  const float d = HalfAt(p);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(p[2 + i]));
}

// Four-bit codes: byte i holds value i low and value i + 16 high.
int Nibble(const uint8_t* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

// Q4_0: d half, codes; x = d (q - 8).
void BlockQ4_0(const uint8_t* p, float* out) {
  const float d = HalfAt(p);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(Nibble(p + 2, i) - 8);
}

// Q4_1: d half, m half, codes; x = d q + m.
void BlockQ4_1(const uint8_t* p, float* out) {
  const float d = HalfAt(p), m = HalfAt(p + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(Nibble(p + 4, i)) + m;
}

// Five-bit codes: a nibble and bit i of a 32-bit word on top.
int FiveBits(uint32_t high, const uint8_t* codes, int i) {
  return Nibble(codes, i) | static_cast<int>((high >> i & 1u) << 4);
}

// Q5_0: d half, high bits, codes; x = d (q - 16).
void BlockQ5_0(const uint8_t* p, float* out) {
  const float d = HalfAt(p);
  const uint32_t high = Word32(p + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(FiveBits(high, p + 6, i) - 16);
}

// Q5_1: d half, m half, high bits, codes; x = d q + m.
void BlockQ5_1(const uint8_t* p, float* out) {
  const float d = HalfAt(p), m = HalfAt(p + 2);
  const uint32_t high = Word32(p + 4);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(FiveBits(high, p + 8, i)) + m;
}

// The K types with minima pack eight 6-bit scales and eight 6-bit minima in 12 bytes.
struct SubScale {
  int scale;
  int minimum;
};
SubScale SubScaleOf(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6) << 4, s[j + 4] >> 4 | (s[j] >> 6) << 4};
}

// Q4_K: d half, dmin half, sub-scales, 128 bytes of codes: each 32 of them hold two sub-blocks of
// 32 values, the first low. x = (d scale) q - dmin minimum.
void BlockQ4_K(const uint8_t* p, float* out) {
  const float d = HalfAt(p), dmin = HalfAt(p + 2);
  const uint8_t* codes = p + 16;
  for (int j = 0; j < 8; ++j) {
    const SubScale sub = SubScaleOf(p + 4, j);
    const float scale = d * static_cast<float>(sub.scale);
    const float minimum = dmin * static_cast<float>(sub.minimum);
    for (int l = 0; l < 32; ++l) {
      const int q = codes[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
      out[j * 32 + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

// Q5_K: as Q4_K with 32 bytes of high bits before the codes: bit j of byte l for sub-block j.
void BlockQ5_K(const uint8_t* p, float* out) {
  const float d = HalfAt(p), dmin = HalfAt(p + 2);
  const uint8_t* high = p + 16;
  const uint8_t* codes = p + 48;
  for (int j = 0; j < 8; ++j) {
    const SubScale sub = SubScaleOf(p + 4, j);
    const float scale = d * static_cast<float>(sub.scale);
    const float minimum = dmin * static_cast<float>(sub.minimum);
    for (int l = 0; l < 32; ++l) {
      const int q = (codes[j / 2 * 32 + l] >> (j % 2 * 4) & 15) | (high[l] >> j & 1) << 4;
      out[j * 32 + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

// Q6_K: 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed sub-scales, d half. Each half of
// 128 values is four rows of 32. x = (d scale) (q - 32).
void BlockQ6_K(const uint8_t* p, float* out) {
  const float d = HalfAt(p + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, row = i % 128 / 32, l = i % 32;
    const int low = p[half * 64 + row % 2 * 32 + l] >> (row / 2 * 4) & 15;
    const int upper = p[128 + half * 32 + l] >> (row * 2) & 3;
    const auto scale = static_cast<int8_t>(p[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((low | upper << 4) - 32);
  }
}

using BlockFunction = void (*)(const uint8_t* block, float* out);
constexpr BlockFunction kBlockFunction[kWeightTypes] = {
    BlockF32,  BlockF16,  BlockBF16, BlockQ8_0, BlockQ4_0, BlockQ4_1,
    BlockQ5_0, BlockQ5_1, BlockQ4_K, BlockQ5_K, BlockQ6_K,
};

}  // namespace

void DequantizeRow(WeightType type, const std::byte* row, int32_t values, float* out) {
  const WeightTypeInfo& info = InfoOf(type);
  STRATA_CHECK(values % info.block_values == 0);
  const BlockFunction function = kBlockFunction[static_cast<int>(type)];
  const uint8_t* p = Bytes(row);
  for (int32_t i = 0; i < values; i += info.block_values, p += info.block_bytes) {
    function(p, out + i);
  }
}

}  // namespace strata
