#include "base/half.h"

#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"

namespace strata {
namespace {

// The compiler's own _Float16 (hardware or libgcc) is the independent implementation.
float Reference(Half h) { return static_cast<float>(std::bit_cast<_Float16>(h)); }

TEST(HalfTest, EveryHalfConvertsExactlyAndBack) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const Half h = static_cast<Half>(i);
    const float f = HalfToFloat(h);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(Reference(h))) << i;
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(f)))) << i;
      continue;
    }
    EXPECT_EQ(f, Reference(h)) << i;
    EXPECT_EQ(FloatToHalf(f), h) << i;
  }
}

TEST(HalfTest, RoundsLikeTheCompilerAndDirectedRoundingBrackets) {
  uint32_t state = 1;
  for (int i = 0; i < 2'000'000; ++i) {
    state = state * 1664525u + 1013904223u;
    // Exponents around and inside the half range, any mantissa.
    const uint32_t bits = (state & 0x807fffffu) | ((96u + (state >> 8) % 50u) << 23);
    const float f = std::bit_cast<float>(bits);
    const Half nearest = FloatToHalf(f);
    ASSERT_EQ(nearest, std::bit_cast<Half>(static_cast<_Float16>(f))) << f;
    if (!HalfIsFinite(nearest)) continue;
    const float down = HalfToFloat(FloatToHalfDown(f));
    const float up = HalfToFloat(FloatToHalfUp(f));
    ASSERT_LE(down, f);
    ASSERT_GE(up, f);
    if (down != up) {
      ASSERT_EQ(HalfNextUp(FloatToHalfDown(f)) == FloatToHalfUp(f) ||
                    (down == 0 && up == HalfToFloat(0x0001)) || up == 0,
                true)
          << f;
    }
  }
}

}  // namespace
}  // namespace strata
