#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace strata {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, bits reversed

// table[k][b]: the CRC of byte b followed by k zero bytes, so that eight bytes are eight
// independent look-ups.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < 8; ++k) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

#if defined(__x86_64__)

// The instruction takes three cycles but starts one each cycle: three independent streams of this
// many bytes run at its full rate. Longer streams amortize the two shifts below.
constexpr size_t kStream = 1024;

// Multiplication by x^(8 * kStream) modulo the polynomial, byte by byte: appends kStream zero bytes
// to a CRC.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr uint32_t ShiftByte(uint32_t crc, size_t zeros) {
  for (size_t i = 0; i < zeros; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
  return crc;
}

ShiftTable MakeShiftTable() {
  // The shift is linear, so 32 single-bit shifts give every entry.
  std::array<uint32_t, 32> bits{};
  for (uint32_t i = 0; i < 32; ++i) bits[i] = ShiftByte(uint32_t{1} << i, kStream);
  ShiftTable table{};
  for (uint32_t part = 0; part < 4; ++part) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      for (uint32_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) table[part][byte] ^= bits[8 * part + bit];
      }
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
         table[3][crc >> 24];
}

uint64_t Load64(const unsigned char* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(uint32_t crc, const void* data,
                                                       size_t bytes) {
  static const ShiftTable shift = MakeShiftTable();
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t a = ~crc;
  for (; bytes >= 3 * kStream; bytes -= 3 * kStream, p += 3 * kStream) {
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      a = _mm_crc32_u64(a, Load64(p + i));
      b = _mm_crc32_u64(b, Load64(p + kStream + i));
      c = _mm_crc32_u64(c, Load64(p + 2 * kStream + i));
    }
    a = Shift(shift, static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    a = Shift(shift, static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(c);
  }
  for (; bytes >= 8; bytes -= 8, p += 8) a = _mm_crc32_u64(a, Load64(p));
  auto tail = static_cast<uint32_t>(a);
  for (; bytes > 0; --bytes, ++p) tail = _mm_crc32_u8(tail, *p);
  return ~tail;
}

#endif

using Function = uint32_t (*)(uint32_t, const void*, size_t);

Function Choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return Crc32cSse42;
#endif
  return internal::Crc32cPortable;
}

}  // namespace

uint32_t internal::Crc32cPortable(uint32_t crc, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    const uint32_t low =
        crc ^ (p[0] | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24);
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][p[4]] ^ kTables[2][p[5]] ^ kTables[1][p[6]] ^
          kTables[0][p[7]];
  }
  for (; bytes > 0; --bytes, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) {
  static const Function function = Choose();
  return function(crc, data, bytes);
}

}  // namespace strata
