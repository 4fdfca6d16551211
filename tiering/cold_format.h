#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cache/layout/page_format.h"
#include "cache/layout/record_layout.h"

namespace strata::cold_format {

// The bytes of a cold store's file, little-endian:
//   superblock              one sector
//   descriptors             one sector a record
//   records                 record_count x record_bytes (cache/layout/record_layout.h)
// A record is there when its descriptor is valid and carries the superblock's epoch: opening the
// store for writing raises the epoch, which drops every earlier record at once. Data is written
// before its descriptor and a descriptor is cleared before its data is overwritten, so that a
// process killed at any instant leaves every record whole or absent.

inline constexpr size_t kSectorBytes = 4096;
inline constexpr uint32_t kVersion = 1;
inline constexpr std::array<char, 16> kSuperblockMagic = {'S', 'T', 'R', 'A', 'T', 'A', ' ',  'C',
                                                          'O', 'L', 'D', ' ', 'K', 'V', '\n', 0};
inline constexpr uint32_t kDescriptorMagic = 0x44524b53;  // "SKRD"
inline constexpr int32_t kLayersMax = 512;
inline constexpr int32_t kGroupsMax = RecordLayout::kGroupsMax;

// Whose pages a store holds: two stores are of one kind when all of this is equal.
struct Identity {
  uint32_t page_format_version = kPageFormatVersion;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint64_t model_fingerprint = 0;
  uint64_t basis_hash = 0;
  uint32_t unit_bytes = 0;  // argument of RecordLayout
  uint32_t reserved = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};
static_assert(sizeof(Identity) == 40);

// K and V kinds of a layer, KvKind values.
struct LayerKinds {
  uint8_t k = 0;
  uint8_t v = 0;
  friend bool operator==(const LayerKinds&, const LayerKinds&) = default;
};

struct Superblock {
  std::array<char, 16> magic = kSuperblockMagic;
  uint32_t version = kVersion;
  uint32_t record_count = 0;
  uint64_t record_bytes = 0;
  uint64_t epoch = 0;
  Identity identity;
  std::array<LayerKinds, kLayersMax> warm{};  // what records were made from
  std::array<LayerKinds, kLayersMax> cold{};  // what they hold
  std::array<uint8_t, kSectorBytes - 80 - 4 * kLayersMax - 4> padding{};
  uint32_t crc = 0;  // CRC32C of everything before it
};
static_assert(sizeof(Superblock) == kSectorBytes);

struct Descriptor {
  uint32_t magic = kDescriptorMagic;
  uint32_t version = kVersion;
  uint64_t epoch = 0;
  uint64_t sequence_number = 0;  // of the write, rising
  Identity identity;
  uint32_t groups = 0;
  uint32_t tokens = 0;
  std::array<LayerKinds, kLayersMax> source{};  // precision the content once had (D5)
  std::array<LayerKinds, kLayersMax> kinds{};
  std::array<uint32_t, kGroupsMax> group_crc{};
  uint32_t reserved = 0;
  // Reserved for prefix reuse, zero: hash chain over the tokens up to this block, and whose.
  std::array<uint8_t, 32> chain_key{};
  std::array<uint8_t, 32> salt_hash{};
  std::array<uint8_t, kSectorBytes - 72 - 4 * kLayersMax - 4 * kGroupsMax - 72> padding{};
  uint32_t crc = 0;  // CRC32C of everything before it
};
static_assert(sizeof(Descriptor) == kSectorBytes);

constexpr uint64_t DescriptorOffset(uint32_t record) {
  return kSectorBytes * (1 + uint64_t{record});
}
constexpr uint64_t RecordOffset(uint32_t record, uint32_t record_count, uint64_t record_bytes) {
  return kSectorBytes * (1 + uint64_t{record_count}) + record * record_bytes;
}
constexpr uint64_t FileBytes(uint64_t records, uint64_t record_bytes) {
  return kSectorBytes + records * (kSectorBytes + record_bytes);
}
// Records of a file of at most `bytes` bytes.
constexpr int32_t RecordsFor(uint64_t bytes, uint64_t record_bytes) {
  if (bytes < kSectorBytes) return 0;
  return static_cast<int32_t>(std::min<uint64_t>(
      (bytes - kSectorBytes) / (kSectorBytes + record_bytes), uint64_t{1} << 28));
}

}  // namespace strata::cold_format
