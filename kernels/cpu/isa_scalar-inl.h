// The vector vocabulary of the kernels where nothing is known of the CPU: four floats at a time,
// which the compiler maps to whatever it has; included by *_scalar.cc alone. isa_avx512-inl.h says
// what each function is for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_kernels.h"

namespace strata::scalar {

struct Ops {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kBlockVectors = 2;
  static constexpr int kBlockQueries = 4;
  static constexpr PageCosts kPageCosts = {4, 5, 5};

  static F Zero() { return F{0, 0, 0, 0}; }
  static F Set1(float x) { return F{x, x, x, x}; }
  static F Load(const float* p) {
    F x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static F LoadHalf(const uint16_t* p) {
    const I h = {p[0], p[1], p[2], p[3]};
    const I sign = (h & 0x8000) << 16;
    const I magnitude = h & 0x7fff;
    const F subnormal = __builtin_convertvector(magnitude, F) * Set1(0x1p-24f);
    I bits = (magnitude << 13) + (112 << 23);
    bits = magnitude >= 0x7c00 ? bits + (112 << 23) : bits;  // infinity and NaN
    bits = magnitude < 0x400 ? Bits(subnormal) : bits;
    return FromBits(bits | sign);
  }
  static void Store(float* p, F x) { __builtin_memcpy(p, &x, sizeof(x)); }
  // x must be a half.
  static void StoreHalf(uint16_t* p, F x) {
    const I bits = Bits(x);
    const I magnitude = bits & 0x7fffffff;
    const I subnormal = __builtin_convertvector(FromBits(magnitude) * Set1(0x1p24f), I);
    const I normal = (magnitude - (112 << 23)) >> 13;
    PutHalves(p, (magnitude < (113 << 23) ? subnormal : normal) | ((bits >> 16) & 0x8000));
  }
  // 0 <= x <= 65504.
  static void StoreHalfUp(uint16_t* p, F x) {
    const F units = x * Set1(0x1p24f);
    const I whole = __builtin_convertvector(units < Set1(1024.0f) ? units : Zero(), I);
    const I subnormal = whole - (__builtin_convertvector(whole, F) < units);
    const I normal = (Bits(x) - (112 << 23) + 0x1fff) >> 13;
    PutHalves(p, Bits(x) < (113 << 23) ? subnormal : normal);
  }

  static F Add(F a, F b) { return a + b; }
  static F Sub(F a, F b) { return a - b; }
  static F Mul(F a, F b) { return a * b; }
  static F Div(F a, F b) { return a / b; }
  // Not fused: nothing here is known to have it.
  static F Fma(F a, F b, F c) { return a * b + c; }
  static F Min(F a, F b) { return a < b ? a : b; }
  static F Max(F a, F b) { return a > b ? a : b; }
  static F MaxMagnitude(F a, F b) {
    return Max(FromBits(Bits(a) & 0x7fffffff), FromBits(Bits(b) & 0x7fffffff));
  }
  static F NextUpWherePositive(F x, F where) { return FromBits(Bits(x) - (where > Zero())); }
  static float ReduceAdd(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float ReduceMin(F x) {
    const float a = x[0] < x[1] ? x[0] : x[1];
    const float b = x[2] < x[3] ? x[2] : x[3];
    return a < b ? a : b;
  }
  static float ReduceMax(F x) {
    const float a = x[0] > x[1] ? x[0] : x[1];
    const float b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
  }
  static F Keep(F x, uint32_t mask, F other) {
    const I bit = {1, 2, 4, 8};
    return (SetInt(static_cast<int32_t>(mask)) & bit) != 0 ? x : other;
  }

  static I ZeroInt() { return SetInt(0); }
  // To the nearest, ties to even, |x| < 2^22.
  static I Round(F x) {
    const F magic = Set1(0x1.8p23f);
    return Bits(x + magic) - Bits(magic);
  }
  static I Trunc(F x) { return __builtin_convertvector(x, I); }
  static F ToFloat(I x) { return __builtin_convertvector(x, F); }
  static I AddInt(I a, I b) { return a + b; }
  static I MinInt(I a, int32_t b) { return a < SetInt(b) ? a : SetInt(b); }
  static I AndInt(I a, int32_t b) { return a & b; }
  static I OrInt(I a, I b) { return a | b; }
  template <int kBits>
  static I ShiftLeft(I x) {
    return x << kBits;
  }
  template <int kBits>
  static I ShiftRight(I x) {
    return x >> kBits;
  }
  static void StoreInt(uint8_t* p, I x) { __builtin_memcpy(p, &x, sizeof(x)); }
  template <int kCount>
  static I StoreInt8(int8_t* p, const I* x) {
    I sum = ZeroInt();
    for (int v = 0; v < kCount; ++v) {
      for (int i = 0; i < kLanes; ++i) p[kLanes * v + i] = static_cast<int8_t>(x[v][i]);
      sum += x[v];
    }
    return sum;
  }

  static bool AllFinite(const uint16_t* values, size_t count) {
    int bad = 0;
    for (size_t i = 0; i < count; ++i) bad |= (values[i] & 0x7c00) == 0x7c00;
    return bad == 0;
  }

  static F Exp2(F x) {
    const F clamped = Max(x, Set1(-127.0f));
    const I whole = __builtin_convertvector(clamped, I);  // towards zero, that is, up
    const I n = whole + (__builtin_convertvector(whole, F) > clamped);
    const F p = Exp2Fraction(clamped - __builtin_convertvector(n, F));
    return p * FromBits((n + 127) << 23);
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
  static void StoreFour(float* p, F x) { Store(p, x); }

  static void Prefetch(const void* p) { __builtin_prefetch(p); }

  template <int kQueries, bool kI4, int kLines, int kOutputs>
  static void Dots(const CodeDotArgs& d, I* out) {
    for (int w = 0; w < 4 * kOutputs; ++w) {
      const size_t output = w / 4 * d.output_stride + w % 4 * 16;
      I sum[kQueries] = {};
      for (int r = 0; r < d.lines; ++r) {
        const I h = LoadInt(d.hi + r * d.line_stride + output);
        const I l = kI4 ? LoadInt(d.lo + r * d.line_stride + output) : ZeroInt();
        for (int e = 0; e < 16; ++e) {
          const int shift = 8 * (e % 4) + 2 * (e / 4);
          const I top = (h >> shift) & 3;
          const I code = kI4 ? (top << 2) + ((l >> shift) & 3) : top;
          for (int i = 0; i < kQueries; ++i)
            sum[i] += code * d.folded[i * d.folded_stride + 16 * r + e];
        }
      }
      for (int i = 0; i < kQueries; ++i) out[i * 4 * kOutputs + w] = sum[i];
    }
  }

 private:
  static F Four(float a, float b, float c, float d) { return F{a, b, c, d}; }
  static I Bits(F x) {
    I bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    return bits;
  }
  static F FromBits(I bits) {
    F x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }
  static I SetInt(int32_t x) { return I{x, x, x, x}; }
  static I LoadInt(const uint8_t* p) {
    I x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static void PutHalves(uint16_t* p, I halves) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(halves[i]);
  }

  static F Exp2Fraction(F r) {
    F p = Set1(0x1.e9750ap-10f);
    p = Fma(p, r, Set1(0x1.27785p-7f));
    p = Fma(p, r, Set1(0x1.c91ce8p-5f));
    p = Fma(p, r, Set1(0x1.ebdb56p-3f));
    p = Fma(p, r, Set1(0x1.62e4bap-1f));
    return Fma(p, r, Set1(1.0f));
  }
};

}  // namespace strata::scalar
