#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/draw_weight.h"

// Where a draw, and the filters before it, end: whole numbers of draw_weight.h's weights, so that
// every device keeps the same tokens and draws the same one. A target is met by the first token
// with which the weights, summed in some order, exceed it; it is below the sum of all.
namespace strata {

// The high 64 bits of the product.
STRATA_HOST_DEVICE inline uint64_t MulHigh64(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

// The target of a draw with 64 random bits.
STRATA_HOST_DEVICE inline uint64_t DrawTarget(uint64_t bits, uint64_t total) {
  return MulHigh64(bits, total);
}

// A probability below 1 in units of 2^-64: exact from 2^-41 on, and never 0.
inline uint64_t MassFraction(float p) {
  const auto fraction = static_cast<uint64_t>(double{p} * 0x1p64);
  return fraction > 0 ? fraction : 1;
}

// The target that is met by reaching that fraction of the total: one less than it, rounded up.
STRATA_HOST_DEVICE inline uint64_t MassTarget(uint64_t fraction, uint64_t total) {
  return MulHigh64(fraction, total) - (fraction * total == 0 ? 1 : 0);
}

// The least weight of a token that is at least `ratio` times as probable as the likeliest.
inline uint64_t LeastWeight(float ratio) {
  return static_cast<uint64_t>(
      std::ceil(double{ratio} * static_cast<double>(uint64_t{1} << kDrawWeightBits)));
}

}  // namespace strata
