#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_bodies-inl.h"

namespace strata {
namespace {

// The primitives of matmul-inl.h and linear_small-inl.h: one register each.
struct Avx512 {
  static constexpr int32_t kMaxRows = 16;
  using V = __m512;
  using I = __m512i;
  using Bytes = __m512i;

  static V Zero() { return _mm512_setzero_ps(); }
  static V Set(float x) { return _mm512_set1_ps(x); }
  static V Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static V LoadN(const float* p, int32_t n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
  static void StoreN(float* p, int32_t n, V v) { _mm512_mask_storeu_ps(p, FirstLanes(n), v); }

  static V LoadHalf(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void StoreHalf(uint16_t* p, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static V LoadBf16(const uint8_t* p) {
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(upper), 16));
  }
  static V LoadU8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(Load16Bytes(p)));
  }
  static V LoadI8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Load16Bytes(p)));
  }

  static V Add(V a, V b) { return _mm512_add_ps(a, b); }
  static V Sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V Div(V a, V b) { return _mm512_div_ps(a, b); }
  static V Min(V a, V b) { return _mm512_min_ps(a, b); }
  static V Max(V a, V b) { return _mm512_max_ps(a, b); }
  static V Fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V FromInt(I a) { return _mm512_cvtepi32_ps(a); }
  static float Sum(V v) { return _mm512_reduce_add_ps(v); }
  static V Round(V v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static V Pow2(V n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static V SwapPairs(V v) { return _mm512_permute_ps(v, 0xb1); }
  static V Hadamard16(V v) {
    v = Butterfly(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
    v = Butterfly(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
    v = Butterfly(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
    return Butterfly(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
  }

  static Bytes LoadBytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Bytes And(Bytes a, int mask) {
    return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static Bytes Or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  template <int n>
  static Bytes ShiftRight(Bytes a) {
    return _mm512_srli_epi16(a, n);
  }
  template <int n>
  static Bytes ShiftLeft(Bytes a) {
    return _mm512_slli_epi16(a, n);
  }

  // vpdpbusd does not saturate.
  template <int bits, int lines>
  static I Dot(const Bytes* w, const int8_t* x) {
    I sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < lines; ++j) sum = _mm512_dpbusd_epi32(sum, w[j], Broadcast(x + 4 * j));
    return sum;
  }
  static constexpr bool kHasDotSigned = false;
  static I Join(I high, I low) {
    return _mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(high, 8), high), low);
  }
  static I SubtractShifted(I sum, int32_t n, int shift) {
    return _mm512_sub_epi32(sum, _mm512_slli_epi32(_mm512_set1_epi32(n), shift));
  }

  // Scale = max|x| / kActivationMax. The maximum is taken of the bits, so that a NaN reaches the
  // scale and the product; a group too small to invert the scale counts as zeros.
  static void Quantize32(const float* x, int8_t* high, int8_t* low, float* scale, int32_t* first,
                         int32_t* last) {
    const V a = Load(x), b = Load(x + 16);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const int32_t max_bits = _mm512_reduce_max_epi32(
        _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(b), magnitude)));
    const float max = __builtin_bit_cast(float, max_bits);
    const V inverse = Set(max > kSmallestMax ? kActivationMax / max : 0.0f);
    *scale = max * (1.0f / kActivationMax);
    *first = Split16(_mm512_cvtps_epi32(Mul(a, inverse)), high, low);
    *last = Split16(_mm512_cvtps_epi32(Mul(b, inverse)), high + 16, low + 16);
  }

 private:
  static __mmask16 FirstLanes(int32_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static __m128i Load16Bytes(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static __m512i Broadcast(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  // Writes 16 integers as kLowWeight high + low, returns their sum. A quotient is never half-way
  // between two integers, as kLowWeight is odd.
  static int32_t Split16(__m512i q, int8_t* high, int8_t* low) {
    const __m512i h = _mm512_cvtps_epi32(Mul(_mm512_cvtepi32_ps(q), Set(1.0f / kLowWeight)));
    const __m512i l = _mm512_add_epi32(_mm512_sub_epi32(q, _mm512_slli_epi32(h, 8)), h);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(h));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(l));
    return _mm512_reduce_add_epi32(q);
  }
  // Lanes of `upper` take partner - v, the others v + partner.
  static V Butterfly(V v, V partner, __mmask16 upper) {
    return _mm512_mask_sub_ps(_mm512_add_ps(v, partner), upper, partner, v);
  }
};

}  // namespace

constexpr LinearTable kLinearTableAvx512 = MakeLinearTable<Avx512>();

}  // namespace strata
