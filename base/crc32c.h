#pragma once

#include <cstddef>
#include <cstdint>

namespace strata {

// CRC32C (Castagnoli) of `bytes` bytes, continuing from `crc`: 0 to begin, and
// Crc32c(Crc32c(0, a), b) is the CRC of a followed by b. Uses the CPU's CRC instruction where there
// is one. Any thread.
uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes);

namespace internal {

// The table implementation: what CPUs without the instruction run, and the oracle of the other.
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t bytes);

}  // namespace internal
}  // namespace strata
