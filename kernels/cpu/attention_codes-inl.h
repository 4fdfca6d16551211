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
  };

  // What to fetch while a page is read: as many lines of two planes as it has itself.
  struct Ahead {
    const uint8_t* hi;
    const uint8_t* lo;
  };

  // One page's (and V group's) parameters folded into a block of queries or weights.
  struct Folded {
    alignas(64) int8_t bytes[kCodeQueriesMax * kHeadDimMax];  // [queries][n]
    alignas(16) float scale[kCodeQueriesMax];
    alignas(16) float constant[kCodeQueriesMax];
  };

  // Folds `n` parameters into kQueries rows of x. kFixed is n where that is known, or 0.
  template <int kQueries, bool kI4, int kFixed>
  static void Fold(const uint16_t* mn, const uint16_t* s, int n, const float* x, size_t x_stride,
                   Folded* folded) {
    // With n known the products stay in registers; otherwise they are made again.
    constexpr int kKept = kFixed == 0 ? 1 : kFixed / kLanes;
    const int count = kFixed == 0 ? n : kFixed;
    F product[kQueries][kKept];
    F center_sum[4];
    F largest[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) center_sum[i] = largest[i] = Ops::Zero();
#pragma GCC unroll 16
    for (int e = 0; e < count; e += kLanes) {
      const F step = Ops::LoadHalf(s + e);
      const F center = Ops::Fma(step, Ops::Set1(8.0f), Ops::LoadHalf(mn + e));
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const F value = Ops::Load(x + i * x_stride + e);
        F& kept = product[i][kFixed == 0 ? 0 : e / kLanes];
        kept = Ops::Mul(value, step);
        center_sum[i] = Ops::Fma(value, center, center_sum[i]);
        largest[i] = Ops::MaxMagnitude(largest[i], kept);
      }
    }
    const F top = Ops::Max(Ops::ReduceMax4(largest), Ops::Set1(kFoldedMin));
    const F scales = Ops::Mul(top, Ops::Set1(kI4 ? 1.0f / 127 : 4.0f / 127));
    F inverse[4];
    F scale[4];
    Ops::Spread4(Ops::Div(Ops::Set1(127.0f), top), inverse);
    Ops::Spread4(scales, scale);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      I sum = Ops::ZeroInt();
      for (int e = 0; e < count; e += kKept * kLanes) {
        I codes[kKept];
#pragma GCC unroll 16
        for (int j = 0; j < kKept; ++j) {
          F value = product[i][j];
          if constexpr (kFixed == 0) {
            value = Ops::Mul(Ops::Load(x + i * x_stride + e), Ops::LoadHalf(s + e));
          }
          codes[j] = Ops::Round(Ops::Mul(value, inverse[i]));
        }
        sum =
            Ops::AddInt(sum, Ops::template StoreInt8<kKept>(folded->bytes + i * count + e, codes));
      }
      const F mean = Ops::Mul(scale[i], Ops::Set1(kI4 ? -7.5f : -1.5f));
      center_sum[i] = Ops::Fma(mean, Ops::ToFloat(sum), center_sum[i]);
    }
    Ops::StoreFour(folded->scale, scales);
    Ops::StoreFour(folded->constant, Ops::ReduceAdd4(center_sum));
  }

  // scores[i][t] of kQueries queries over the page's 64 tokens, from the bytes, scale and constant
  // of its first entry in `folded`. kFixed is the head dim or 0.
  template <int kQueries, bool kI4, int kFixed>
  static void Scores(const Planes& k, const Ahead& ahead, int dim, const Folded& folded,
                     float* scores) {
    const int columns = dim / 16;
    I dots[kQueries * 4 * kLineVectors];
    Ops::template Dots<kQueries, kI4, kFixed / 16, 4>(
        {k.hi, k.lo, 64, size_t{64} * columns, columns, folded.bytes, static_cast<size_t>(dim),
         ahead.hi, ahead.lo},
        dots);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      const F scale = Ops::Set1(folded.scale[i]);
      const F constant = Ops::Set1(folded.constant[i]);
#pragma GCC unroll 16
      for (int w = 0; w < 4 * kLineVectors; ++w) {
        const F dot = Ops::ToFloat(dots[i * 4 * kLineVectors + w]);
        Ops::Store(scores + i * kScoreStride + w * kLanes, Ops::Fma(scale, dot, constant));
      }
    }
  }

  // o[i][c] += sum over the page's 64 tokens of p[i][t] v_tc less the fold's constant, for kQueries
  // rows of folded weights and the 16 kColumns channels of one V group from `column` on.
  template <int kQueries, bool kI4, int kColumns>
  static void Values(const Planes& v, const Ahead& ahead, int dim, int column, const Folded& folded,
                     float* o) {
    const size_t first = size_t{64} * column;
    const size_t fetched = 4 * first;
    I dots[kQueries * kColumns * kLineVectors];
    Ops::template Dots<kQueries, kI4, 4, kColumns>(
        {v.hi + first, v.lo + first, size_t{4} * dim, 64, 4, folded.bytes, kTokens,
         ahead.hi + fetched, ahead.lo + fetched},
        dots);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      const F scale = Ops::Set1(folded.scale[i]);
#pragma GCC unroll 16
      for (int w = 0; w < kColumns * kLineVectors; ++w) {
        float* out = o + i * dim + 16 * column + w * kLanes;
        const F dot = Ops::ToFloat(dots[i * kColumns * kLineVectors + w]);
        Ops::Store(out, Ops::Fma(scale, dot, Ops::Load(out)));
      }
    }
  }
};

}  // namespace strata
