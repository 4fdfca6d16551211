#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

// The weights that a token is drawn with, in whole numbers: their sums are the same in any order,
// so a CPU that adds them one by one and a GPU that adds them by the thousand draw the same token.
#ifdef __CUDACC__
#define STRATA_HOST_DEVICE __host__ __device__
#else
#define STRATA_HOST_DEVICE
#endif

namespace strata {

// 2^40 is the weight of probability's greatest: 2^24 tokens of it fit 64 bits, and what weighs
// nothing is less than 10^-12 as probable.
inline constexpr int kDrawWeightBits = 40;

namespace internal {

// Two roundings where a compiler may make one of a product and a sum.
STRATA_HOST_DEVICE inline double Product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
STRATA_HOST_DEVICE inline double Sum(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
STRATA_HOST_DEVICE inline uint32_t ToBits(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}
STRATA_HOST_DEVICE inline float FromBits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}
STRATA_HOST_DEVICE inline double FromBits(uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(static_cast<long long>(bits));
#else
  return std::bit_cast<double>(bits);
#endif
}
STRATA_HOST_DEVICE inline uint64_t ToBits(double value) {
#ifdef __CUDA_ARCH__
  return static_cast<uint64_t>(__double_as_longlong(value));
#else
  return std::bit_cast<uint64_t>(value);
#endif
}

}  // namespace internal

// 2^40 e^logit to the nearest whole number and about one part in 2^40, for a logit of at most 0;
// NaN and -infinity weigh nothing. x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor series to
// r^10 (the next term is below 3e-13). Double operations that round once each: the same bits
// everywhere. No branches and no conversions to integers, so that a compiler makes vectors of it.
STRATA_HOST_DEVICE inline uint64_t DrawWeight(float logit) {
  using internal::Product;
  using internal::Sum;
  // At least -29, whose weight rounds to 0. As bits, so that NaN is one of the lesser ones.
  uint32_t magnitude = internal::ToBits(logit) & 0x7fffffffu;
  magnitude = magnitude < 0x41e80000u ? magnitude : 0x41e80000u;
  const double x = -double{internal::FromBits(magnitude)};
  // Adding 1.5 * 2^52 rounds to a whole number, which is in the last bits then; |n| is at most 42.
  const double shifted = Sum(Product(x, 0x1.71547652b82fep+0), 0x1.8p52);
  const double n = Sum(shifted, -0x1.8p52);
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  const double r = Sum(Sum(x, Product(n, -0x1.62e42feep-1)), Product(n, -0x1.a39ef35793c76p-33));
  double p = 1.0 / 3628800;
  p = Sum(Product(p, r), 1.0 / 362880);
  p = Sum(Product(p, r), 1.0 / 40320);
  p = Sum(Product(p, r), 1.0 / 5040);
  p = Sum(Product(p, r), 1.0 / 720);
  p = Sum(Product(p, r), 1.0 / 120);
  p = Sum(Product(p, r), 1.0 / 24);
  p = Sum(Product(p, r), 1.0 / 6);
  p = Sum(Product(p, r), 0.5);
  p = Sum(Product(p, r), 1.0);
  p = Sum(Product(p, r), 1.0);
  // Times 2^(n + 40): n goes from the last bits to the exponent's.
  const uint64_t bias = static_cast<uint64_t>(1023 + kDrawWeightBits) << 52;
  const double weight = Product(p, internal::FromBits((internal::ToBits(shifted) << 52) + bias));
  // 2^52 more puts a number below 2^52 in the last bits, rounded.
  return internal::ToBits(Sum(weight, 0x1p52)) - internal::ToBits(0x1p52);
}

// The same of many logits, two at a time.
void DrawWeights(const float* logits, size_t count, uint64_t* weights);

}  // namespace strata
