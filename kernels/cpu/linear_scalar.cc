#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_bodies-inl.h"

namespace strata {
namespace {

// The primitives of matmul-inl.h and linear_small-inl.h as loops over 16 lanes: portable, and what
// the compiler makes of it. Fma rounds twice.
struct Scalar {
  static constexpr int32_t kMaxRows = 4;
  static constexpr int kLanes = 16;
  struct V {
    float lane[kLanes];
  };
  struct I {
    int32_t lane[kLanes];
  };
  struct Bytes {
    uint8_t byte[4 * kLanes];
  };

  static V Zero() { return Set(0.0f); }
  static V Set(float x) {
    return Make([&](int) { return x; });
  }
  static V Load(const float* p) {
    return Make([&](int i) { return p[i]; });
  }
  static void Store(float* p, V v) { StoreN(p, kLanes, v); }
  static V LoadN(const float* p, int32_t n) {
    return Make([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void StoreN(float* p, int32_t n, V v) {
    for (int i = 0; i < n; ++i) p[i] = v.lane[i];
  }

  static V LoadHalf(const uint8_t* p) {
    return Make([&](int i) { return FloatOfHalf(Load16(p + 2 * i)); });
  }
  static void StoreHalf(uint16_t* p, V v) {
    for (int i = 0; i < kLanes; ++i) p[i] = HalfOfFloat(v.lane[i]);
  }
  static V LoadBf16(const uint8_t* p) {
    return Make(
        [&](int i) { return __builtin_bit_cast(float, uint32_t{Load16(p + 2 * i)} << 16); });
  }
  static V LoadU8(const uint8_t* p) {
    return Make([&](int i) { return static_cast<float>(p[i]); });
  }
  static V LoadI8(const uint8_t* p) {
    return Make([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
  }

  static V Add(V a, V b) {
    return Make([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static V Sub(V a, V b) {
    return Make([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static V Mul(V a, V b) {
    return Make([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static V Div(V a, V b) {
    return Make([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static V Min(V a, V b) {
    return Make([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static V Max(V a, V b) {
    return Make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static V Fma(V a, V b, V c) {
    return Make([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static V FromInt(I a) {
    return Make([&](int i) { return static_cast<float>(a.lane[i]); });
  }
  static float Sum(V v) {
    float sum = 0;
    for (float x : v.lane) sum += x;
    return sum;
  }
  static V Round(V v) {
    return Make([&](int i) { return RoundedOf(v.lane[i]); });
  }
  static V Pow2(V n) {
    return Make([&](int i) {
      return __builtin_bit_cast(float, (static_cast<int32_t>(n.lane[i]) + 127) << 23);
    });
  }
  static V SwapPairs(V v) {
    return Make([&](int i) { return v.lane[i ^ 1]; });
  }
  static V Hadamard16(V v) {
    for (int step = 1; step < kLanes; step *= 2) {
      v = Make([&](int i) {
        return (i & step) == 0 ? v.lane[i] + v.lane[i ^ step] : v.lane[i ^ step] - v.lane[i];
      });
    }
    return v;
  }

  static Bytes LoadBytes(const uint8_t* p) {
    return MakeBytes([&](int i) { return p[i]; });
  }
  static Bytes And(Bytes a, int mask) {
    return MakeBytes([&](int i) { return a.byte[i] & mask; });
  }
  static Bytes Or(Bytes a, Bytes b) {
    return MakeBytes([&](int i) { return a.byte[i] | b.byte[i]; });
  }
  template <int n>
  static Bytes ShiftRight(Bytes a) {
    return MakeBytes([&](int i) { return a.byte[i] >> n; });
  }
  template <int n>
  static Bytes ShiftLeft(Bytes a) {
    return MakeBytes([&](int i) { return a.byte[i] << n; });
  }

  template <int bits, int lines>
  static I Dot(const Bytes* w, const int8_t* x) {
    I sum = {};
    for (int j = 0; j < lines; ++j) {
      for (int i = 0; i < kLanes; ++i) {
        int32_t four = 0;
        for (int b = 0; b < 4; ++b) four += w[j].byte[4 * i + b] * x[4 * j + b];
        sum.lane[i] += four;
      }
    }
    return sum;
  }
  static constexpr bool kHasDotSigned = false;
  static I Join(I high, I low) {
    for (int i = 0; i < kLanes; ++i) low.lane[i] += kLowWeight * high.lane[i];
    return low;
  }
  static I SubtractShifted(I sum, int32_t n, int shift) {
    for (int32_t& lane : sum.lane) lane -= n * (1 << shift);
    return sum;
  }

  // Scale = max|x| / kActivationMax. The maximum is taken of the bits, so that a NaN reaches the
  // scale and the product; a group too small to invert the scale counts as zeros.
  static void Quantize32(const float* x, int8_t* high, int8_t* low, float* scale, int32_t* first,
                         int32_t* last) {
    int32_t max_bits = 0;
    for (int i = 0; i < 32; ++i) {
      const int32_t bits = __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff;
      if (bits > max_bits) max_bits = bits;
    }
    const float max = __builtin_bit_cast(float, max_bits);
    const float inverse = max > kSmallestMax ? kActivationMax / max : 0.0f;
    *scale = max * (1.0f / kActivationMax);
    int32_t sums[2] = {};
    for (int i = 0; i < 32; ++i) {
      const float rounded = RoundedOf(x[i] * inverse);
      // False for NaN, which must not be converted.
      const bool valid = rounded >= -kActivationMax && rounded <= kActivationMax;
      const int32_t q = valid ? static_cast<int32_t>(rounded) : 0;
      // A quotient is never half-way between two integers, as kLowWeight is odd.
      const auto h = static_cast<int32_t>(RoundedOf(static_cast<float>(q) * (1.0f / kLowWeight)));
      high[i] = static_cast<int8_t>(h);
      low[i] = static_cast<int8_t>(q - kLowWeight * h);
      sums[i / 16] += q;
    }
    *first = sums[0];
    *last = sums[1];
  }

 private:
  template <class Lane>
  static V Make(const Lane& lane) {
    V v;
    for (int i = 0; i < kLanes; ++i) v.lane[i] = lane(i);
    return v;
  }
  template <class Byte>
  static Bytes MakeBytes(const Byte& byte) {
    Bytes v;
    for (int i = 0; i < 4 * kLanes; ++i) v.byte[i] = static_cast<uint8_t>(byte(i));
    return v;
  }

  static uint16_t Load16(const uint8_t* p) {
    uint16_t x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  // To the nearest integer, ties to even, for |x| < 2^22: the sum's last place is one.
  static float RoundedOf(float x) {
    const float magic = 12582912.0f;
    return (x + magic) - magic;
  }

  // base/half.h is not for per-ISA files: its functions are shared between objects.
  static float FloatOfHalf(uint16_t h) {
    const uint32_t sign = uint32_t{h & 0x8000u} << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) {
      return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    // The bits shifted into place are the value times 2^-112, subnormals included.
    const float scaled = __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, scaled));
  }
  static uint16_t HalfOfFloat(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
    if (magnitude < 0x38800000u) {
      // Subnormal: adding 0.5 aligns the last place, the addition rounds.
      const float aligned = __builtin_bit_cast(float, magnitude) + 0.5f;
      return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, aligned) - 0x3f000000u));
    }
    const uint32_t odd = magnitude >> 13 & 1u;
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
  }
};

}  // namespace

constexpr LinearTable kLinearTableScalar = MakeLinearTable<Scalar>();

}  // namespace strata
