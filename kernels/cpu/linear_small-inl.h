#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_table-inl.h"

// The small operations of a layer over S, the primitives described in matmul-inl.h. More of S:
//   Sub, Div, Max, Min, Sum (fixed order), Store, StoreHalf(p, v), Round (nearest, as float),
//   Pow2 (of an integral float), SwapPairs (lanes 2 i and 2 i + 1), Hadamard16 (unnormalized)
namespace strata {

inline constexpr int32_t kHeadDimMax = 256;

template <class S>
struct SmallOps {
  using V = typename S::V;

  static void RmsNorm(const float* x, const float* weight, int32_t width, float epsilon, float* y) {
    const V factor = S::Set(InverseRms(x, width, epsilon));
    int32_t i = 0;
    for (; i + 16 <= width; i += 16) {
      S::Store(y + i, S::Mul(S::Mul(S::Load(x + i), factor), S::Load(weight + i)));
    }
    if (i == width) return;
    const int32_t n = width - i;
    S::StoreN(y + i, n, S::Mul(S::Mul(S::LoadN(x + i, n), factor), S::LoadN(weight + i, n)));
  }

  static void SwiGlu(const float* gate_up, int32_t width, float* y) {
    const float* up = gate_up + width;
    int32_t i = 0;
    for (; i + 16 <= width; i += 16) {
      S::Store(y + i, S::Mul(Silu(S::Load(gate_up + i)), S::Load(up + i)));
    }
    if (i == width) return;
    const int32_t n = width - i;
    S::StoreN(y + i, n, S::Mul(Silu(S::LoadN(gate_up + i, n)), S::LoadN(up + i, n)));
  }

  static void Hadamard(int64_t count, int32_t head_dim, float* heads) {
    const float factor = BlockFactor(head_dim);
    for (int64_t i = 0; i < count; ++i) HadamardHead(head_dim, factor, heads + i * head_dim);
  }

  static void RopeRow(const RopeRowArgs& args) {
    const int32_t dim = args.head_dim;
    const int32_t group = args.query_heads / args.kv_heads;
    const float* x = args.qkv;
    alignas(64) float head[kHeadDimMax];
    for (int32_t h = 0; h < args.query_heads; ++h, x += dim) {
      float* q = args.q + size_t{1} * h * dim;
      NormAndRotate(args, x, args.q_norm, q);
      const float* scale = args.k_scale == nullptr ? nullptr : args.k_scale + h / group * dim;
      for (int32_t c = 0; scale != nullptr && c < dim; c += 16) {
        S::Store(q + c, S::Div(S::Load(q + c), S::Load(scale + c)));
      }
      FinishHead(dim, args.rotate_k, args.q_factor, q);
    }
    for (int32_t h = 0; h < args.kv_heads; ++h, x += dim) {
      NormAndRotate(args, x, args.k_norm, head);
      const float* scale = args.k_scale == nullptr ? nullptr : args.k_scale + h * dim;
      for (int32_t c = 0; scale != nullptr && c < dim; c += 16) {
        S::Store(head + c, S::Mul(S::Load(head + c), S::Load(scale + c)));
      }
      if (args.rotate_k) HadamardHead(dim, BlockFactor(dim), head);
      AppendK(head, dim, args.k + args.k_stride * h);
    }
    for (int32_t h = 0; h < args.kv_heads; ++h, x += dim) {
      for (int32_t c = 0; c < dim; c += 16) S::Store(head + c, S::Load(x + c));
      if (args.rotate_v) HadamardHead(dim, BlockFactor(dim), head);
      uint16_t* v = args.v + args.v_stride * h;
      for (int32_t c = 0; c < dim; c += 16) S::StoreHalf(v + c, S::Load(head + c));
    }
  }

 private:
  static float InverseRms(const float* x, int32_t width, float epsilon) {
    V even = S::Zero(), odd = S::Zero();
    int32_t i = 0;
    for (; i + 32 <= width; i += 32) {
      const V a = S::Load(x + i), b = S::Load(x + i + 16);
      even = S::Fma(a, a, even);
      odd = S::Fma(b, b, odd);
    }
    for (; i < width; i += 16) {
      const V a = S::LoadN(x + i, width - i < 16 ? width - i : 16);
      even = S::Fma(a, a, even);
    }
    const float mean = S::Sum(S::Add(even, odd)) / static_cast<float>(width);
    return 1.0f / __builtin_sqrtf(mean + epsilon);
  }

  // e^x to about one unit in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor
  // series to r^7 (the next term is below 6e-9). Arguments are clamped where 2^n stays normal.
  [[gnu::always_inline]] static V Exp(V x) {
    x = S::Max(S::Min(x, S::Set(88.0f)), S::Set(-87.0f));
    const V n = S::Round(S::Mul(x, S::Set(1.44269504f)));
    // ln 2 in two parts, the first with so few bits that n times it is exact.
    V r = S::Fma(n, S::Set(-0.693359375f), x);
    r = S::Fma(n, S::Set(2.12194440e-4f), r);
    V p = S::Set(1.0f / 5040);
    p = S::Fma(p, r, S::Set(1.0f / 720));
    p = S::Fma(p, r, S::Set(1.0f / 120));
    p = S::Fma(p, r, S::Set(1.0f / 24));
    p = S::Fma(p, r, S::Set(1.0f / 6));
    p = S::Fma(p, r, S::Set(0.5f));
    p = S::Fma(p, r, S::Set(1.0f));
    p = S::Fma(p, r, S::Set(1.0f));
    return S::Mul(p, S::Pow2(n));
  }

  [[gnu::always_inline]] static V Silu(V gate) {
    const V one = S::Set(1.0f);
    return S::Div(gate, S::Add(one, Exp(S::Sub(S::Zero(), gate))));
  }

  // 1 / sqrt(block) of the largest power of two that divides head_dim.
  static float BlockFactor(int32_t head_dim) {
    return 1.0f / __builtin_sqrtf(static_cast<float>(head_dim & -head_dim));
  }

  static void HadamardHead(int32_t dim, float factor, float* head) {
    const int32_t block = dim & -dim;
    for (int32_t c = 0; c < dim; c += 16) {
      S::Store(head + c, S::Mul(S::Hadamard16(S::Load(head + c)), S::Set(factor)));
    }
    for (int32_t step = 16; step < block; step *= 2) {
      for (int32_t c = 0; c < dim; c += 16) {
        if ((c & step) != 0) continue;
        const V a = S::Load(head + c), b = S::Load(head + c + step);
        S::Store(head + c, S::Add(a, b));
        S::Store(head + c + step, S::Sub(a, b));
      }
    }
  }

  // The basis change of a query, its factor folded into the transform's.
  static void FinishHead(int32_t dim, bool rotate, float factor, float* head) {
    if (rotate) {
      HadamardHead(dim, BlockFactor(dim) * factor, head);
      return;
    }
    for (int32_t c = 0; c < dim; c += 16) {
      S::Store(head + c, S::Mul(S::Load(head + c), S::Set(factor)));
    }
  }

  static void NormAndRotate(const RopeRowArgs& args, const float* x, const float* norm,
                            float* out) {
    const int32_t dim = args.head_dim;
    alignas(64) float normed[kHeadDimMax];
    alignas(64) float partner[kHeadDimMax];
    const V factor = S::Set(norm == nullptr ? 1.0f : InverseRms(x, dim, args.norm_epsilon));
    for (int32_t c = 0; c < dim; c += 16) {
      V v = S::Load(x + c);
      if (norm != nullptr) v = S::Mul(S::Mul(v, factor), S::Load(norm + c));
      S::Store(normed + c, v);
      S::Store(partner + c, S::SwapPairs(v));
    }
    if (args.halves) {
      const int32_t half = args.rope_dim / 2;
      for (int32_t c = 0; c < half; ++c) partner[c] = normed[c + half];
      for (int32_t c = 0; c < half; ++c) partner[c + half] = normed[c];
    }
    for (int32_t c = 0; c < dim; c += 16) {
      const V turned = S::Mul(S::Load(partner + c), S::Load(args.sine + c));
      S::Store(out + c, S::Fma(S::Load(normed + c), S::Load(args.cosine + c), turned));
    }
  }

  static void AppendK(const float* head, int32_t dim, uint16_t* k) {
    alignas(64) uint16_t halves[kHeadDimMax];
    for (int32_t c = 0; c < dim; c += 16) S::StoreHalf(halves + c, S::Load(head + c));
    for (int32_t c = 0; c < dim; ++c) k[16 * c] = halves[c];
  }
};

}  // namespace strata
