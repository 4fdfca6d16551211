// The vector vocabulary of the kernels for AVX2 with FMA and F16C; included by *_avx2.cc alone.
// isa_avx512-inl.h says what each function is for.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"

namespace strata::avx2 {

struct Ops {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kBlockVectors = 2;
  static constexpr int kBlockQueries = 6;
  static constexpr PageCosts kPageCosts = {5, 3, 3};

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set1(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static F LoadHalf(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void StoreHalf(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void StoreHalfUp(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
  }

  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F MaxMagnitude(F a, F b) {
    const F sign = Set1(-0.0f);
    return Max(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b));
  }
  static F NextUpWherePositive(F x, F where) {
    const I positive = _mm256_castps_si256(_mm256_cmp_ps(where, Zero(), _CMP_GT_OQ));
    // Comparing gives -1: subtracting it adds one place.
    return _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_castps_si256(x), positive));
  }
  static float ReduceAdd(F x) {
    __m128 r = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    r = _mm_add_ps(r, _mm_movehl_ps(r, r));
    return _mm_cvtss_f32(_mm_add_ss(r, _mm_movehdup_ps(r)));
  }
  static float ReduceMin(F x) {
    __m128 r = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    r = _mm_min_ps(r, _mm_movehl_ps(r, r));
    return _mm_cvtss_f32(_mm_min_ss(r, _mm_movehdup_ps(r)));
  }
  static float ReduceMax(F x) {
    __m128 r = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    r = _mm_max_ps(r, _mm_movehl_ps(r, r));
    return _mm_cvtss_f32(_mm_max_ss(r, _mm_movehdup_ps(r)));
  }
  static F Keep(F x, uint32_t mask, F other) {
    const I bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const I set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(mask)), bit);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit)));
  }

  static I ZeroInt() { return _mm256_setzero_si256(); }
  static I Round(F x) { return _mm256_cvtps_epi32(x); }
  static I Trunc(F x) { return _mm256_cvttps_epi32(x); }
  static F ToFloat(I x) { return _mm256_cvtepi32_ps(x); }
  static I AddInt(I a, I b) { return _mm256_add_epi32(a, b); }
  static I MinInt(I a, int32_t b) { return _mm256_min_epi32(a, _mm256_set1_epi32(b)); }
  static I AndInt(I a, int32_t b) { return _mm256_and_si256(a, _mm256_set1_epi32(b)); }
  static I OrInt(I a, I b) { return _mm256_or_si256(a, b); }
  template <int kBits>
  static I ShiftLeft(I x) {
    return _mm256_slli_epi32(x, kBits);
  }
  template <int kBits>
  static I ShiftRight(I x) {
    return _mm256_srli_epi32(x, kBits);
  }
  static void StoreInt(uint8_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  template <int kCount>
  static I StoreInt8(int8_t* p, const I* x) {
    I sum = ZeroInt();
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const __m128i words =
          _mm_packs_epi32(_mm256_castsi256_si128(x[i]), _mm256_extracti128_si256(x[i], 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(p + 8 * i), _mm_packs_epi16(words, words));
      sum = _mm256_add_epi32(sum, x[i]);
    }
    return sum;
  }

  static bool AllFinite(const uint16_t* values, size_t count) {
    const I exponent = _mm256_set1_epi16(0x7c00);
    I bad = _mm256_setzero_si256();
    for (size_t i = 0; i < count; i += 16) {
      const I x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
      bad = _mm256_or_si256(bad, _mm256_cmpeq_epi16(_mm256_and_si256(x, exponent), exponent));
    }
    return _mm256_testz_si256(bad, bad) != 0;
  }

  // The exponent is clamped where 2^n becomes an exponent field of 0, that is, exactly 0.
  static F Exp2(F x) {
    const F clamped = Max(x, Set1(-127.0f));
    const F n = _mm256_floor_ps(clamped);
    const I power = _mm256_slli_epi32(_mm256_add_epi32(Round(n), _mm256_set1_epi32(127)), 23);
    return Mul(Exp2Fraction(Sub(clamped, n)), _mm256_castsi256_ps(power));
  }

  static F ReduceAdd4(const F* x) {
    return Four(ReduceAdd(x[0]), ReduceAdd(x[1]), ReduceAdd(x[2]), ReduceAdd(x[3]));
  }
  static F ReduceMax4(const F* x) {
    return Four(ReduceMax(x[0]), ReduceMax(x[1]), ReduceMax(x[2]), ReduceMax(x[3]));
  }
  static void Spread4(F x, F* out) {
    for (int i = 0; i < 4; ++i) out[i] = Set1(x[i]);
  }
  static void StoreFour(float* p, F x) { _mm_storeu_ps(p, _mm256_castps256_ps128(x)); }

  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  // The 16-bit sums of one line are at most 4 * 2 * 15 * 127 = 15,240.
  template <int kQueries, bool kI4, int kLines, int kOutputs>
  static void Dots(const CodeDotArgs& d, I* out) {
    const int lines = kLines == 0 ? d.lines : kLines;
    const bool ahead_lo = d.ahead_lo != d.ahead_hi;
    for (int w = 0; w < 2 * kOutputs; ++w) {
      const size_t output = w / 2 * d.output_stride + w % 2 * 32;
      I sum[kQueries];
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) sum[i] = ZeroInt();
      for (int r = 0; r < lines; ++r) {
        I codes[4];
        const size_t line = r * d.line_stride + output;
        Unpack<kI4>(d.hi + line, d.lo + line, codes);
        if (w % 2 == 0) {
          const size_t fetched = size_t{64} * (w / 2 * lines + r);
          Prefetch(d.ahead_hi + fetched);
          if (ahead_lo) Prefetch(d.ahead_lo + fetched);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) {
          const int8_t* x = d.folded + i * d.folded_stride + 16 * r;
          const I z01 = _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], Quad(x)),
                                         _mm256_maddubs_epi16(codes[1], Quad(x + 4)));
          const I z23 = _mm256_add_epi16(_mm256_maddubs_epi16(codes[2], Quad(x + 8)),
                                         _mm256_maddubs_epi16(codes[3], Quad(x + 12)));
          sum[i] = _mm256_add_epi32(
              sum[i], _mm256_madd_epi16(_mm256_add_epi16(z01, z23), _mm256_set1_epi16(1)));
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) out[i * 2 * kOutputs + w] = sum[i];
    }
  }

 private:
  static F Four(float a, float b, float c, float d) {
    return _mm256_setr_ps(a, b, c, d, a, b, c, d);
  }
  static F Exp2Fraction(F r) {
    F p = Set1(0x1.e9750ap-10f);
    p = Fma(p, r, Set1(0x1.27785p-7f));
    p = Fma(p, r, Set1(0x1.c91ce8p-5f));
    p = Fma(p, r, Set1(0x1.ebdb56p-3f));
    p = Fma(p, r, Set1(0x1.62e4bap-1f));
    return Fma(p, r, Set1(1.0f));
  }

  static I Quad(const int8_t* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return _mm256_set1_epi32(quad);
  }

  template <bool kI4>
  static void Unpack(const uint8_t* hi, const uint8_t* lo, I* codes) {
    const I h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(hi));
    if constexpr (kI4) {
      const I l = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lo));
      const I pair = _mm256_set1_epi8(0x33);
      const I low = _mm256_set1_epi8(0x0f);
      const I even = _mm256_or_si256(_mm256_andnot_si256(pair, _mm256_slli_epi32(h, 2)),
                                     _mm256_and_si256(pair, l));
      const I odd = _mm256_or_si256(_mm256_andnot_si256(pair, h),
                                    _mm256_and_si256(pair, _mm256_srli_epi32(l, 2)));
      codes[0] = _mm256_and_si256(even, low);
      codes[1] = _mm256_and_si256(odd, low);
      codes[2] = _mm256_and_si256(_mm256_srli_epi32(even, 4), low);
      codes[3] = _mm256_and_si256(_mm256_srli_epi32(odd, 4), low);
    } else {
      const I two = _mm256_set1_epi8(0x03);
      codes[0] = _mm256_and_si256(h, two);
      codes[1] = _mm256_and_si256(_mm256_srli_epi32(h, 2), two);
      codes[2] = _mm256_and_si256(_mm256_srli_epi32(h, 4), two);
      codes[3] = _mm256_and_si256(_mm256_srli_epi32(h, 6), two);
    }
  }
};

}  // namespace strata::avx2
