#pragma once

// CUDA's integer, float and half intrinsics that the toolkit's headers give to the device only, and
// loads and stores with cache hints (the hint is dropped).

#include "tests/cuda/executor/builtins.h"

template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcs(const T* p) {
  return *p;
}
template <class T>
inline T __ldcg(const T* p) {
  return *p;
}
template <class T>
inline T __ldca(const T* p) {
  return *p;
}
template <class T>
inline T __ldcv(const T* p) {
  return *p;
}
template <class T>
inline void __stcs(T* p, T v) {
  *p = v;
}
template <class T>
inline void __stcg(T* p, T v) {
  *p = v;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (select & 7))) & 0xff;
    if (select & 8) byte = byte & 0x80 ? 0xff : 0;  // the sign, replicated
    result |= byte << (8 * i);
  }
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += int{static_cast<int8_t>(a >> 8 * i)} * int{static_cast<int8_t>(b >> 8 * i)};
  }
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
  return c;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}

namespace executor {
template <class To, class From>
inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace executor

inline float __uint_as_float(unsigned u) { return executor::BitCast<float>(u); }
inline unsigned __float_as_uint(float f) { return executor::BitCast<unsigned>(f); }
inline float __int_as_float(int i) { return executor::BitCast<float>(i); }
inline int __float_as_int(float f) { return executor::BitCast<int>(f); }
inline int __float2int_rn(float f) { return static_cast<int>(nearbyintf(f)); }
inline int __float2int_rz(float f) { return static_cast<int>(f); }
inline int __float2int_rd(float f) { return static_cast<int>(floorf(f)); }
inline unsigned __float2uint_rn(float f) { return static_cast<unsigned>(nearbyintf(f)); }
inline float __int2float_rn(int i) { return static_cast<float>(i); }
inline float __uint2float_rn(unsigned i) { return static_cast<float>(i); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __saturatef(float a) { return a > 0 ? (a > 1 ? 1.0f : a) : 0.0f; }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
// glibc's <math.h> declares __expf, __logf, __sinf, ... without exporting them: intrinsics.cc has
// them.

inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// The product is exact in double; the sum may round once before it rounds to half.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(double{__half2float(a)} * double{__half2float(b)} + double{__half2float(c)});
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                        __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
inline __half hexp(__half a) { return __float2half(expf(__half2float(a))); }
inline __half hrsqrt(__half a) { return __float2half(1.0f / sqrtf(__half2float(a))); }
