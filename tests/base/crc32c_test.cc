#include "base/crc32c.h"

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

// RFC 3720 B.4, and the usual check value of "123456789".
TEST(Crc32cTest, KnownVectors) {
  std::vector<unsigned char> bytes(32, 0);
  EXPECT_EQ(Crc32c(0, bytes.data(), bytes.size()), 0x8a9136aau);
  bytes.assign(32, 0xff);
  EXPECT_EQ(Crc32c(0, bytes.data(), bytes.size()), 0x62a8ab43u);
  std::iota(bytes.begin(), bytes.end(), 0);
  EXPECT_EQ(Crc32c(0, bytes.data(), bytes.size()), 0x46dd794eu);
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(internal::Crc32cPortable(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(Crc32c(0, nullptr, 0), 0u);
}

std::vector<unsigned char> Pseudorandom(size_t bytes) {
  std::vector<unsigned char> data(bytes);
  uint64_t state = 88172645463325252ull;
  for (unsigned char& byte : data) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return data;
}

// Lengths around the three-stream body of the hardware path, from an odd address.
TEST(Crc32cTest, HardwareAgreesWithTable) {
  const std::vector<unsigned char> data = Pseudorandom(20000);
  for (size_t bytes : {1, 7, 8, 9, 1024, 3071, 3072, 3073, 3080, 6143, 6144, 9999, 19999}) {
    EXPECT_EQ(Crc32c(17, data.data() + 1, bytes),
              internal::Crc32cPortable(17, data.data() + 1, bytes))
        << bytes;
  }
}

TEST(Crc32cTest, ContinuesAcrossPieces) {
  const std::vector<unsigned char> data = Pseudorandom(10000);
  const uint32_t whole = Crc32c(0, data.data(), data.size());
  for (size_t cut : {0, 1, 63, 4096, 9999}) {
    EXPECT_EQ(Crc32c(Crc32c(0, data.data(), cut), data.data() + cut, data.size() - cut), whole);
  }
}

TEST(Crc32cTest, EveryBitMatters) {
  std::vector<unsigned char> data = Pseudorandom(4096);
  const uint32_t whole = Crc32c(0, data.data(), data.size());
  for (size_t bit = 0; bit < data.size() * 8; bit += 97) {
    data[bit / 8] ^= static_cast<unsigned char>(1 << (bit % 8));
    EXPECT_NE(Crc32c(0, data.data(), data.size()), whole) << bit;
    data[bit / 8] ^= static_cast<unsigned char>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace strata
