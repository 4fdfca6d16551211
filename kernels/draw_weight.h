#pragma once

#include <bit>
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
STRATA_HOST_DEVICE inline double FromBits(uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(static_cast<long long>(bits));
#else
  return std::bit_cast<double>(bits);
#endif
}

}  // namespace internal

// floor(2^40 e^logit) to about one part in 2^40, for a logit of at most 0; NaN and -infinity weigh
// nothing. x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor series to r^10 (the next term is
// below 3e-13). Double operations that round once each: the same bits everywhere.
STRATA_HOST_DEVICE inline uint64_t DrawWeight(float logit) {
  using internal::Product;
  using internal::Sum;
  if (!(logit > -28.0f)) return 0;  // e^-28 < 2^-40
  const double x = logit;
  // Adding 1.5 * 2^52 rounds to a whole number; |n| is at most 41.
  const double n = Sum(Sum(Product(x, 0x1.71547652b82fep+0), 0x1.8p52), -0x1.8p52);
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
  const auto exponent = static_cast<uint64_t>(1023 + kDrawWeightBits + static_cast<int64_t>(n));
  return static_cast<uint64_t>(Product(p, internal::FromBits(exponent << 52)));
}

}  // namespace strata
