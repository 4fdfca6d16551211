// The vector vocabulary of the kernels for AVX-512; included by *_avx512.cc alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace strata::avx512 {

struct Ops {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  // Register block of the F16 kernels: vectors of the tensor held at once, and queries.
  static constexpr int kBlockVectors = 4;
  static constexpr int kBlockQueries = 6;

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set1(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static F LoadHalf(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void StoreHalf(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void StoreHalfUp(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
  }

  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  // max(|a|, |b|), sign cleared.
  static F MaxMagnitude(F a, F b) { return _mm512_range_ps(a, b, 0b1011); }
  static F NextUpWherePositive(F x, F where) {
    const __mmask16 mask = _mm512_cmp_ps_mask(where, Zero(), _CMP_GT_OQ);
    const __m512i bits = _mm512_castps_si512(x);
    return _mm512_castsi512_ps(_mm512_mask_add_epi32(bits, mask, bits, _mm512_set1_epi32(1)));
  }
  static float ReduceAdd(F x) { return _mm512_reduce_add_ps(x); }
  static float ReduceMin(F x) { return _mm512_reduce_min_ps(x); }
  static float ReduceMax(F x) { return _mm512_reduce_max_ps(x); }
  // Keeps lanes whose bit of `mask` is set, the others become `other`.
  static F Keep(F x, uint32_t mask, F other) {
    return _mm512_mask_mov_ps(other, static_cast<__mmask16>(mask), x);
  }

  static I ZeroInt() { return _mm512_setzero_si512(); }
  static I Round(F x) { return _mm512_cvtps_epi32(x); }
  static I Trunc(F x) { return _mm512_cvttps_epi32(x); }
  static F ToFloat(I x) { return _mm512_cvtepi32_ps(x); }
  static I AddInt(I a, I b) { return _mm512_add_epi32(a, b); }
  static I MinInt(I a, int32_t b) { return _mm512_min_epi32(a, _mm512_set1_epi32(b)); }
  static I AndInt(I a, int32_t b) { return _mm512_and_si512(a, _mm512_set1_epi32(b)); }
  static I OrInt(I a, I b) { return _mm512_or_si512(a, b); }
  template <int kBits>
  static I ShiftLeft(I x) {
    return _mm512_slli_epi32(x, kBits);
  }
  template <int kBits>
  static I ShiftRight(I x) {
    return _mm512_srli_epi32(x, kBits);
  }
  static void StoreInt(uint8_t* p, I x) { _mm512_storeu_si512(p, x); }
  // Values in [-128, 127] as bytes.
  static void StoreInt8(int8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }

  static bool AllFinite(const uint16_t* values, size_t count) {
    const __m256i exponent = _mm256_set1_epi16(0x7c00);
    __mmask16 bad = 0;
    for (size_t i = 0; i < count; i += 16) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
      bad |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(x, exponent), exponent);
    }
    return bad == 0;
  }

  // 2^x for x <= 0 within 2 ulp; exactly 1 at 0. scalef takes any exponent, so what is far below
  // the range becomes 0 by itself.
  static F Exp2(F x) {
    const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(Exp2Fraction(_mm512_sub_ps(x, n)), n);
  }

  // Four horizontal reductions at once; each result fills all lanes of its output. A result's order
  // of additions does not depend on its place among the four.
  static void ReduceAdd4(const F* x, F* out) {
    const F ab = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const F cd = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    F r = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    r = _mm512_add_ps(r, _mm512_shuffle_f32x4(r, r, 0x4e));
    r = _mm512_add_ps(r, _mm512_shuffle_f32x4(r, r, 0xb1));
    Spread(r, out);
  }
  static void ReduceMax4(const F* x, F* out) {
    const F ab = _mm512_max_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const F cd = _mm512_max_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    F r = _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    r = _mm512_max_ps(r, _mm512_shuffle_f32x4(r, r, 0x4e));
    r = _mm512_max_ps(r, _mm512_shuffle_f32x4(r, r, 0xb1));
    Spread(r, out);
  }

  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  // One output line of integer dots: out[i] lane w = sum over `lines` plane lines, `stride` bytes
  // apart, of code * folded[i]. Codes of the upper two element quads stay in their nibbles and are
  // summed apart at 16 times their value, which saves their shifts.
  template <int kQueries, bool kI4>
  static void Dots(const uint8_t* hi, const uint8_t* lo, size_t stride, int lines,
                   const int8_t* folded, size_t folded_stride, I* out) {
    I low[kQueries];
    I high[kQueries];
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; ++i) low[i] = high[i] = ZeroInt();
    for (int r = 0; r < lines; ++r) {
      I codes[4];
      Unpack<kI4>(hi + r * stride, lo + r * stride, codes);
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
        const int8_t* x = folded + i * folded_stride + 16 * r;
        low[i] = _mm512_dpbusd_epi32(low[i], codes[0], Quad(x));
        high[i] = _mm512_dpbusd_epi32(high[i], codes[2], Quad(x + 8));
        low[i] = _mm512_dpbusd_epi32(low[i], codes[1], Quad(x + 4));
        high[i] = _mm512_dpbusd_epi32(high[i], codes[3], Quad(x + 12));
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; ++i) {
      out[i] = _mm512_add_epi32(low[i], _mm512_srai_epi32(high[i], 4));
    }
  }

 private:
  // 2^r on [-1/2, 1/2]: minimax of relative error with p(0) = 1, 9.2e-8 before rounding.
  static F Exp2Fraction(F r) {
    F p = Set1(0x1.5bb9e6p-10f);
    p = Fma(p, r, Set1(0x1.3cea8cp-7f));
    p = Fma(p, r, Set1(0x1.c6b754p-5f));
    p = Fma(p, r, Set1(0x1.ebf9bcp-3f));
    p = Fma(p, r, Set1(0x1.62e42ap-1f));
    return Fma(p, r, Set1(1.0f));
  }

  static void Spread(F r, F* out) {
    out[0] = _mm512_permute_ps(r, 0x00);
    out[1] = _mm512_permute_ps(r, 0x55);
    out[2] = _mm512_permute_ps(r, 0xaa);
    out[3] = _mm512_permute_ps(r, 0xff);
  }

  static __m512i Quad(const int8_t* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return _mm512_set1_epi32(quad);
  }

  template <bool kI4>
  static void Unpack(const uint8_t* hi, const uint8_t* lo, I* codes) {
    const I h = _mm512_loadu_si512(hi);
    if constexpr (kI4) {
      const I l = _mm512_loadu_si512(lo);
      const I pair = _mm512_set1_epi8(0x33);
      // Ternary logic 0xd8: the first operand where the mask (third) is clear, else the second.
      const I even = _mm512_ternarylogic_epi32(_mm512_slli_epi32(h, 2), l, pair, 0xd8);
      const I odd = _mm512_ternarylogic_epi32(h, _mm512_srli_epi32(l, 2), pair, 0xd8);
      const I low = _mm512_set1_epi8(0x0f);
      codes[0] = _mm512_and_si512(even, low);
      codes[1] = _mm512_and_si512(odd, low);
      codes[2] = _mm512_andnot_si512(low, even);
      codes[3] = _mm512_andnot_si512(low, odd);
    } else {
      const I odd = _mm512_srli_epi32(h, 2);
      codes[0] = _mm512_and_si512(h, _mm512_set1_epi8(0x03));
      codes[1] = _mm512_and_si512(odd, _mm512_set1_epi8(0x03));
      codes[2] = _mm512_and_si512(h, _mm512_set1_epi8(0x30));
      codes[3] = _mm512_and_si512(odd, _mm512_set1_epi8(0x30));
    }
  }
};

}  // namespace strata::avx512
