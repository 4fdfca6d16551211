#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_bodies-inl.h"

namespace strata {
namespace {

// The primitives of matmul-inl.h and linear_small-inl.h: two registers each.
struct Avx2 {
  static constexpr int32_t kMaxRows = 4;
  struct V {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  using Bytes = I;

  static V Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static V Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void Store(float* p, V v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static V LoadN(const float* p, int32_t n) {
    if (n == 16) return Load(p);
    return {_mm256_maskload_ps(p, FirstLanes(n)), _mm256_maskload_ps(p + 8, FirstLanes(n - 8))};
  }
  static void StoreN(float* p, int32_t n, V v) {
    if (n == 16) return Store(p, v);
    _mm256_maskstore_ps(p, FirstLanes(n), v.a);
    _mm256_maskstore_ps(p + 8, FirstLanes(n - 8), v.b);
  }

  static V LoadHalf(const uint8_t* p) {
    return {_mm256_cvtph_ps(Load16Bytes(p)), _mm256_cvtph_ps(Load16Bytes(p + 16))};
  }
  static void StoreHalf(uint16_t* p, V v) {
    auto* out = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(out, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(out + 1, _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
  }
  static V LoadBf16(const uint8_t* p) {
    const __m256i a = _mm256_cvtepu16_epi32(Load16Bytes(p));
    const __m256i b = _mm256_cvtepu16_epi32(Load16Bytes(p + 16));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  }
  static V LoadU8(const uint8_t* p) {
    const __m128i bytes = Load16Bytes(p);
    return FromInt({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))});
  }
  static V LoadI8(const uint8_t* p) {
    const __m128i bytes = Load16Bytes(p);
    return FromInt({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
  }

  static V Add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static V Sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static V Mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static V Div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static V Min(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static V Max(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static V Fma(V x, V y, V z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static V FromInt(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static float Sum(V v) {
    const __m256 eight = _mm256_add_ps(v.a, v.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
  static V Round(V v) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(v.a, kMode), _mm256_round_ps(v.b, kMode)};
  }
  static V Pow2(V n) { return {Pow2Of(n.a), Pow2Of(n.b)}; }
  static V SwapPairs(V v) { return {_mm256_permute_ps(v.a, 0xb1), _mm256_permute_ps(v.b, 0xb1)}; }
  static V Hadamard16(V v) {
    const __m256 a = Hadamard8(v.a), b = Hadamard8(v.b);
    return {_mm256_add_ps(a, b), _mm256_sub_ps(a, b)};
  }

  static Bytes LoadBytes(const uint8_t* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  static Bytes And(Bytes x, int mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
  }
  static Bytes Or(Bytes x, Bytes y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
  }
  template <int n>
  static Bytes ShiftRight(Bytes x) {
    return {_mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n)};
  }
  template <int n>
  static Bytes ShiftLeft(Bytes x) {
    return {_mm256_slli_epi16(x.a, n), _mm256_slli_epi16(x.b, n)};
  }

  // vpmaddubsw saturates at 2^15: one step of b-bit codes is at most 2 (2^b - 1) 127, so 8, 4 and 2
  // steps of 4, 5 and 6 bits may be added as 16-bit numbers before they are widened.
  template <int bits, int lines>
  static I Dot(const Bytes* w, const int8_t* x) {
    constexpr int kSafeSteps = bits == 4 ? 8 : bits == 5 ? 4 : 2;
    constexpr int kSteps = kSafeSteps < lines ? kSafeSteps : lines;
    static_assert(kSteps * 2 * ((1 << bits) - 1) * 127 < (1 << 15));
    I sum = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
    for (int first = 0; first < lines; first += kSteps) {
      I part = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step) {
        const Bytes& line = w[first + step];
        const __m256i four = Broadcast(x + 4 * (first + step));
        part.a = _mm256_add_epi16(part.a, _mm256_maddubs_epi16(line.a, four));
        part.b = _mm256_add_epi16(part.b, _mm256_maddubs_epi16(line.b, four));
      }
      AddPairs(part, &sum);
    }
    return sum;
  }
  // Eight-bit codes less 128: |w| as unsigned times x with w's sign keeps a pair at most
  // 2 * 128 * 127 < 2^15, where the code itself could reach 2 * 255 * 127.
  static constexpr bool kHasDotSigned = true;
  template <int lines>
  static I DotSigned(const Bytes* w, const int8_t* x) {
    const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
    I sum = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
    for (int j = 0; j < lines; ++j) {
      const __m256i four = Broadcast(x + 4 * j);
      const __m256i a = _mm256_xor_si256(w[j].a, offset), b = _mm256_xor_si256(w[j].b, offset);
      AddPairs({_mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(four, a)),
                _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(four, b))},
               &sum);
    }
    return sum;
  }

  static I Join(I high, I low) {
    return {_mm256_add_epi32(_mm256_sub_epi32(_mm256_slli_epi32(high.a, 8), high.a), low.a),
            _mm256_add_epi32(_mm256_sub_epi32(_mm256_slli_epi32(high.b, 8), high.b), low.b)};
  }
  static I SubtractShifted(I sum, int32_t n, int shift) {
    const __m256i offset = _mm256_slli_epi32(_mm256_set1_epi32(n), shift);
    return {_mm256_sub_epi32(sum.a, offset), _mm256_sub_epi32(sum.b, offset)};
  }

  // Scale = max|x| / kActivationMax. The maximum is taken of the bits, so that a NaN reaches the
  // scale and the product; a group too small to invert the scale counts as zeros.
  static void Quantize32(const float* x, int8_t* high, int8_t* low, float* scale, int32_t* first,
                         int32_t* last) {
    const V v[2] = {Load(x), Load(x + 16)};
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i bits = _mm256_setzero_si256();
    for (const V& part : v) {
      bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_castps_si256(part.a), magnitude));
      bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_castps_si256(part.b), magnitude));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    const float max = __builtin_bit_cast(float, _mm_cvtsi128_si32(four));
    const V inverse = Set(max > kSmallestMax ? kActivationMax / max : 0.0f);
    *scale = max * (1.0f / kActivationMax);
    *first = Split16(Mul(v[0], inverse), high, low);
    *last = Split16(Mul(v[1], inverse), high + 16, low + 16);
  }

 private:
  static __m256i FirstLanes(int32_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
  }
  static __m128i Load16Bytes(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static __m256i Broadcast(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
  }
  static void AddPairs(I part, I* sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    sum->a = _mm256_add_epi32(sum->a, _mm256_madd_epi16(part.a, ones));
    sum->b = _mm256_add_epi32(sum->b, _mm256_madd_epi16(part.b, ones));
  }

  // Rounds 16 values to integers and writes them as kLowWeight high + low; returns their sum. A
  // quotient is never half-way between two integers, as kLowWeight is odd.
  static int32_t Split16(V v, int8_t* high, int8_t* low) {
    const I q = {_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)};
    const V quotient = Mul(FromInt(q), Set(1.0f / kLowWeight));
    const I h = {_mm256_cvtps_epi32(quotient.a), _mm256_cvtps_epi32(quotient.b)};
    StoreBytes(h, high);
    StoreBytes({_mm256_add_epi32(_mm256_sub_epi32(q.a, _mm256_slli_epi32(h.a, 8)), h.a),
                _mm256_add_epi32(_mm256_sub_epi32(q.b, _mm256_slli_epi32(h.b, 8)), h.b)},
               low);
    const __m256i eight = _mm256_add_epi32(q.a, q.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
  }
  // The packs work within 128-bit halves: a0 b0 a1 b1 is put back in order.
  static void StoreBytes(I v, int8_t* out) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
  }

  static __m256 Pow2Of(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static __m256 Hadamard8(__m256 v) {
    __m256 p = _mm256_permute_ps(v, 0xb1);
    v = _mm256_blend_ps(_mm256_add_ps(v, p), _mm256_sub_ps(p, v), 0xaa);
    p = _mm256_permute_ps(v, 0x4e);
    v = _mm256_blend_ps(_mm256_add_ps(v, p), _mm256_sub_ps(p, v), 0xcc);
    p = _mm256_permute2f128_ps(v, v, 0x01);
    return _mm256_blend_ps(_mm256_add_ps(v, p), _mm256_sub_ps(p, v), 0xf0);
  }
};

}  // namespace

constexpr LinearTable kLinearTableAvx2 = MakeLinearTable<Avx2>();

}  // namespace strata
