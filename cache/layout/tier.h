#pragma once

#include <cstdint>

namespace strata {

// The tiers, nearest first. The values index arrays and appear in metrics as "hot", "warm", "cold".
enum class Tier : uint8_t { kHot = 0, kWarm = 1, kCold = 2 };
inline constexpr int kTierCount = 3;

constexpr int IndexOf(Tier tier) { return static_cast<int>(tier); }

}  // namespace strata
