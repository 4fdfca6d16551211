#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace strata {

// IEEE 754 binary16 as its bits, so that it can live in PODs shared with kernels.
using Half = uint16_t;

// Exact.
constexpr float HalfToFloat(Half h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  // Zero or subnormal: mantissa * 2^-24, exact in binary32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even; overflow gives infinity, NaN stays NaN.
constexpr Half FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const Half sign = static_cast<Half>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<Half>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<Half>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {                                           // below 2^-14: subnormal
    // Adding 0.5 aligns the result's last place with binary32's: the addition does the rounding.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<Half>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<Half>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

// The next representable value towards -inf / +inf. Input must be finite.
constexpr Half HalfNextDown(Half h) {
  if (h == 0x0000u) return 0x8001u;
  return static_cast<Half>((h & 0x8000u) != 0 ? h + 1 : h - 1);
}
constexpr Half HalfNextUp(Half h) {
  if (h == 0x8000u) return 0x0001u;
  return static_cast<Half>((h & 0x8000u) != 0 ? h - 1 : h + 1);
}

// The largest half <= value, the smallest half >= value (docs/PAGE_FORMAT.md: page parameters).
constexpr Half FloatToHalfDown(float value) {
  const Half h = FloatToHalf(value);
  return HalfToFloat(h) > value ? HalfNextDown(h) : h;
}
constexpr Half FloatToHalfUp(float value) {
  const Half h = FloatToHalf(value);
  return HalfToFloat(h) < value ? HalfNextUp(h) : h;
}

constexpr bool HalfIsFinite(Half h) { return (h & 0x7c00u) != 0x7c00u; }

}  // namespace strata
