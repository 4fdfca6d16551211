#pragma once

#include <array>
#include <cstdint>

namespace strata {

// Philox4x32 with 10 rounds: a bijection of the counter for each key. Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The 64 random bits of one token's draw.
uint64_t DrawBits(uint64_t seed, uint64_t position, uint32_t choice);

// The same as a fraction: uniform in [0, 1), 53 bits, a pure function of its arguments.
double UniformDraw(uint64_t seed, uint64_t position, uint32_t choice);

}  // namespace strata
