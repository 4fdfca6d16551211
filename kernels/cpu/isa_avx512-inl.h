// The vector vocabulary of the kernels for AVX-512; included by *_avx512.cc alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"

namespace strata::avx512 {

struct Ops {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  // Register block of the F16 kernels: vectors of the tensor held at once, and queries.
  static constexpr int kBlockVectors = 4;
  static constexpr int kBlockQueries = 6;
  static constexpr PageCosts kPageCosts = {8, 3, 2};

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
  // Stores kCount vectors of values in [-128, 127] as bytes; returns their sum, spread over lanes
  // in any way.
  template <int kCount>
  static I StoreInt8(int8_t* p, const I* x) {
    if constexpr (kCount == 4) {
      // Packing leaves quad j of vector v in dword 4 j + v.
      const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      const I words =
          _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
      const I bytes = _mm512_permutexvar_epi32(order, words);
      _mm512_storeu_si512(p, bytes);
      return _mm512_dpbusd_epi32(ZeroInt(), _mm512_set1_epi8(1), bytes);
    }
    I sum = ZeroInt();
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * i), _mm512_cvtepi32_epi8(x[i]));
      sum = _mm512_add_epi32(sum, x[i]);
    }
    return sum;
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

  // 2^x for x <= 0 within 2 ulp; exactly 1 at 0. scalef takes the floor of any exponent, so what is
  // far below the range becomes 0 by itself.
  static F Exp2(F x) {
    const F r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(Exp2Fraction(r), x);
  }

  // Four horizontal reductions at once: lane i % 4 holds the one of x[i]. A result's order of
  // additions does not depend on its place among the four.
  static F ReduceAdd4(const F* x) {
    const F ab = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const F cd = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    F r = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    r = _mm512_add_ps(r, _mm512_shuffle_f32x4(r, r, 0x4e));
    return _mm512_add_ps(r, _mm512_shuffle_f32x4(r, r, 0xb1));
  }
  static F ReduceMax4(const F* x) {
    const F ab = _mm512_max_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const F cd = _mm512_max_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    F r = _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    r = _mm512_max_ps(r, _mm512_shuffle_f32x4(r, r, 0x4e));
    return _mm512_max_ps(r, _mm512_shuffle_f32x4(r, r, 0xb1));
  }
  // out[i] = lane i of what the functions above give, in all lanes.
  static void Spread4(F x, F* out) {
    out[0] = _mm512_permute_ps(x, 0x00);
    out[1] = _mm512_permute_ps(x, 0x55);
    out[2] = _mm512_permute_ps(x, 0xaa);
    out[3] = _mm512_permute_ps(x, 0xff);
  }
  static void StoreFour(float* p, F x) { _mm_storeu_ps(p, _mm512_castps512_ps128(x)); }

  static void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  // out[i * kOutputs + a]. kLines is `lines` where that is known, or 0. A quad of bytes is spread
  // over a register once for all output lines: spreading competes with the dots for a port.
  template <int kQueries, bool kI4, int kLines, int kOutputs>
  static void Dots(const CodeDotArgs& d, I* out) {
    const int lines = kLines == 0 ? d.lines : kLines;
    const bool ahead_lo = d.ahead_lo != d.ahead_hi;
    I sum[kQueries][kOutputs];
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
      for (int a = 0; a < kOutputs; ++a) sum[i][a] = ZeroInt();
    }
#pragma GCC unroll 1
    for (int r = 0; r < lines; ++r) {
      Pair pair[kOutputs];
#pragma GCC unroll 4
      for (int a = 0; a < kOutputs; ++a) {
        const size_t line = r * d.line_stride + a * d.output_stride;
        pair[a] = LoadPair<kI4>(d.hi + line, d.lo + line);
        const size_t fetched = size_t{64} * (r * kOutputs + a);
        Prefetch(d.ahead_hi + fetched);
        if (ahead_lo) Prefetch(d.ahead_lo + fetched);
      }
#pragma GCC unroll 4
      for (int z = 0; z < 4; ++z) {
        I codes[kOutputs];
#pragma GCC unroll 4
        for (int a = 0; a < kOutputs; ++a) codes[a] = CodesOf<kI4>(pair[a], z);
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) {
          const I quad = Quad(d.folded + i * d.folded_stride + 16 * r + 4 * z);
#pragma GCC unroll 4
          for (int a = 0; a < kOutputs; ++a) {
            sum[i][a] = _mm512_dpbusd_epi32(sum[i][a], codes[a], quad);
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
      for (int a = 0; a < kOutputs; ++a) out[i * kOutputs + a] = sum[i][a];
    }
  }

 private:
  // 2^r on [0, 1): minimax of relative error with p(0) = 1, 8.3e-8 before rounding, 1.5e-7 after.
  static F Exp2Fraction(F r) {
    F p = Set1(0x1.e9750ap-10f);
    p = Fma(p, r, Set1(0x1.27785p-7f));
    p = Fma(p, r, Set1(0x1.c91ce8p-5f));
    p = Fma(p, r, Set1(0x1.ebdb56p-3f));
    p = Fma(p, r, Set1(0x1.62e4bap-1f));
    return Fma(p, r, Set1(1.0f));
  }

  static __m512i Quad(const int8_t* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return _mm512_set1_epi32(quad);
  }

  // Codes of element quads 0 and 2, and of 1 and 3, as nibbles of each byte (I2: as they lie).
  struct Pair {
    I even, odd;
  };

  template <bool kI4>
  static Pair LoadPair(const uint8_t* hi, const uint8_t* lo) {
    const I h = _mm512_loadu_si512(hi);
    if constexpr (!kI4) return {h, h};
    const I l = _mm512_loadu_si512(lo);
    const I low_bits = _mm512_set1_epi8(0x33);
    // Ternary logic 0xd8: the first operand where the mask (third) is clear, else the second.
    return {_mm512_ternarylogic_epi32(_mm512_slli_epi32(h, 2), l, low_bits, 0xd8),
            _mm512_ternarylogic_epi32(h, _mm512_srli_epi32(l, 2), low_bits, 0xd8)};
  }

  // The codes of quad z as bytes.
  template <bool kI4>
  static I CodesOf(const Pair& pair, int z) {
    if constexpr (kI4) {
      const I nibbles = z % 2 == 0 ? pair.even : pair.odd;
      return _mm512_and_si512(z < 2 ? nibbles : _mm512_srli_epi32(nibbles, 4),
                              _mm512_set1_epi8(0x0f));
    }
    return _mm512_and_si512(z == 0 ? pair.even : _mm512_srli_epi32(pair.even, 2 * z),
                            _mm512_set1_epi8(0x03));
  }
};

}  // namespace strata::avx512
