// I4 and I2 pages: folding the parameters into queries or weights, and integer dots; once for all
// instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"

namespace strata {

// With codes c, parameters mn and s, and centre z = mn + 8 s (the middle of a group's range, where
// the mean of both formats' codes lands):
//
//   x . value = sum_e x_e z_e + sum_e x_e s_e unit (c_e - mean)
//             ~ sum_e x_e z_e - scale mean sum_e i_e + scale sum_e i_e c_e     i_e int8
//
// where i_e rounds x_e s_e / (scale / unit). I4: unit 1, mean 7.5; I2: unit 4, mean 1.5. Writing it
// with the centre is the correction of attention.md: what rounding takes from x_e s_e meets
// c_e - mean, which is zero on average, and not c_e. x is a query (K) or softmax weights (V).
// Scales cannot overflow: s <= 8188 and the largest |x s| becomes 127 by one division.
template <class Ops>
struct CodePages {
  using F = typename Ops::F;
  using I = typename Ops::I;
  static constexpr int kLanes = Ops::kLanes;
  static constexpr int kTokens = 64;
  static constexpr int kLineVectors = 16 / kLanes;

  // Below this the folded values are as good as zero, and its reciprocal is still a number.
  static constexpr float kFoldedMin = 0x1p-100f;

  // What a tensor of one page is read with: planes (lo unused for I2) and parameters.
  struct Planes {
    const uint8_t* hi;
    const uint8_t* lo;
    const uint16_t* mn;
    const uint16_t* s;
    bool is_i4;
  };

  // Folds `n` parameters into kQueries rows of x: bytes to folded[i], and the scale and the
  // constant of the formula above, in all lanes.
  template <int kQueries>
  static void Fold(const uint16_t* mn, const uint16_t* s, bool is_i4, int n, const float* x,
                   size_t x_stride, int8_t* folded, F* scale, F* constant) {
    F center_sum[4];
    F largest[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) center_sum[i] = largest[i] = Ops::Zero();
    for (int e = 0; e < n; e += kLanes) {
      const F step = Ops::LoadHalf(s + e);
      const F center = Ops::Fma(step, Ops::Set1(8.0f), Ops::LoadHalf(mn + e));
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const F value = Ops::Load(x + i * x_stride + e);
        center_sum[i] = Ops::Fma(value, center, center_sum[i]);
        largest[i] = Ops::MaxMagnitude(largest[i], Ops::Mul(value, step));
      }
    }
    F top[4];
    Ops::ReduceMax4(largest, top);
    I codes[kQueries];
    F inverse[kQueries];
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      codes[i] = Ops::ZeroInt();
      inverse[i] = Ops::Div(Ops::Set1(127.0f), Ops::Max(top[i], Ops::Set1(kFoldedMin)));
    }
    for (int e = 0; e < n; e += kLanes) {
      const F step = Ops::LoadHalf(s + e);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const F value = Ops::Mul(Ops::Load(x + i * x_stride + e), step);
        const I code = Ops::Round(Ops::Mul(value, inverse[i]));
        codes[i] = Ops::AddInt(codes[i], code);
        Ops::StoreInt8(folded + i * kHeadDimMax + e, code);
      }
    }
    const F unit = Ops::Set1(is_i4 ? 1.0f / 127 : 4.0f / 127);
    const F mean = Ops::Set1(is_i4 ? -7.5f : -1.5f);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      scale[i] = Ops::Mul(Ops::Max(top[i], Ops::Set1(kFoldedMin)), unit);
      center_sum[i] = Ops::Fma(Ops::Mul(scale[i], mean), Ops::ToFloat(codes[i]), center_sum[i]);
    }
    F sums[4];
    Ops::ReduceAdd4(center_sum, sums);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) constant[i] = sums[i];
  }

  // Fetches `bytes` from where the next page's planes are.
  static void PrefetchLines(const uint8_t* hi, const uint8_t* lo, bool is_i4, int line, int count) {
    for (int r = 0; r < count; ++r) {
      Ops::Prefetch(hi + size_t{64} * (line + r));
      if (is_i4) Ops::Prefetch(lo + size_t{64} * (line + r));
    }
  }

  // scores[i][t] of kQueries queries over the page's 64 tokens.
  template <int kQueries, bool kI4>
  static void Scores(const Planes& k, const Planes& next, int dim, const float* q, int8_t* folded,
                     float* scores) {
    F scale[kQueries];
    F constant[kQueries];
    Fold<kQueries>(k.mn, k.s, kI4, dim, q, dim, folded, scale, constant);
    const int columns = dim / 16;
    for (int tt = 0; tt < 4; ++tt) {
      PrefetchLines(next.hi, next.lo, kI4, tt * columns, columns);
      I dots[kQueries * kLineVectors];
      const size_t line = size_t{64} * tt * columns;
      Ops::template Dots<kQueries, kI4>(k.hi + line, k.lo + line, 64, columns, folded, kHeadDimMax,
                                        dots);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
        for (int w = 0; w < kLineVectors; ++w) {
          Ops::Store(scores + i * kScoreStride + 16 * tt + w * kLanes,
                     Ops::Fma(scale[i], Ops::ToFloat(dots[i * kLineVectors + w]), constant[i]));
        }
      }
    }
    // The parameters lie behind the plane.
    for (int b = 0; b < 4 * dim; b += 64) Ops::Prefetch(next.hi + size_t{16} * dim + b);
  }

  // o[i] += sum over the page's 64 tokens of p[i][t] v_t, for kQueries rows of weights.
  template <int kQueries, bool kI4>
  static void Values(const Planes& v, const Planes& next, int dim, int v_group, const float* p,
                     int8_t* folded, float* o) {
    const int columns = dim / 16;
    const size_t stride = size_t{64} * columns;
    for (int g = 0; g < dim / v_group; ++g) {
      F scale[kQueries];
      F constant[kQueries];
      Fold<kQueries>(v.mn + g * kTokens, v.s + g * kTokens, kI4, kTokens, p, kScoreStride, folded,
                     scale, constant);
      for (int j = g * v_group / 16; j < (g + 1) * v_group / 16; ++j) {
        PrefetchLines(next.hi, next.lo, kI4, 4 * j, 4);
        I dots[kQueries * kLineVectors];
        Ops::template Dots<kQueries, kI4>(v.hi + 64 * j, v.lo + 64 * j, stride, 4, folded,
                                          kHeadDimMax, dots);
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
          for (int w = 0; w < kLineVectors; ++w) {
            float* out = o + i * dim + 16 * j + w * kLanes;
            const F base = Ops::Add(Ops::Load(out), constant[i]);
            Ops::Store(out, Ops::Fma(scale[i], Ops::ToFloat(dots[i * kLineVectors + w]), base));
          }
        }
      }
      Ops::Prefetch(next.hi + size_t{16} * dim + g * 4 * kTokens);
      Ops::Prefetch(next.hi + size_t{16} * dim + g * 4 * kTokens + 64);
      Ops::Prefetch(next.hi + size_t{16} * dim + g * 4 * kTokens + 128);
      Ops::Prefetch(next.hi + size_t{16} * dim + g * 4 * kTokens + 192);
    }
  }
};

}  // namespace strata
