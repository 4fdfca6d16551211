#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/layout/geometry.h"

namespace strata {

// How one tensor (K or V) of a page is stored. The values are persisted: never reuse one (F4).
enum class KvKind : uint8_t {
  kF16 = 1,  // IEEE half precision
  kI4 = 3,   // nested 4-bit codes: hi and lo planes
  kI2 = 4,   // the hi plane alone of the same codes
};

// Bits of one value, parameters apart. Kinds compare by it: more bits, more precision.
constexpr int BitsOf(KvKind kind) {
  switch (kind) {
    case KvKind::kF16:
      return 16;
    case KvKind::kI4:
      return 4;
    case KvKind::kI2:
      return 2;
  }
  return 0;
}

inline constexpr uint32_t kPageFormatVersion = 1;

// The bytes of a page: one layer's K and V of 64 tokens for all KV heads. A page has two regions,
// BASE and REFINE; REFINE holds only the lo planes of I4 tensors, so that I4 -> I2 is "drop
// REFINE".
//
// BASE     K region, then V region; per KV head, heads consecutive:
//   K F16  [tile of 16 tokens: 4][channel: D][token in tile: 16] half    lanes are tokens, so
//   scores
//                                                                        need no horizontal sums
//   V F16  [token: 64][channel: D] half                                  lanes are channels
//   K I4/I2  hi plane (16 D bytes), mn half[D], s half[D]                parameters a channel
//   V I4/I2  hi plane (16 D bytes), mn half[D / G][64], s half[D / G][64]  parameters a token,
//   group
// REFINE   lo planes (16 D bytes a head) of K if K is I4, then of V if V is I4
//
// A plane is lines of 64 bytes, each 16 little-endian 32-bit words, each word 16 two-bit codes:
//   K line(tt, j) = plane line tt * D/16 + j: word i = token 16 tt + i,
//                   bits 8 b + 2 z .. + 1 = channel 16 j + 4 z + b          tt < 4, j < D / 16
//   V line(tt, j) = plane line tt * D/16 + j: word i = channel 16 j + i,
//                   bits 8 b + 2 z .. + 1 = token 16 tt + 4 z + b
// so that (word >> 2 z) & 0x03030303 is four consecutive reduction elements as bytes.
// Codes: mn = half_down(min), s = half_up((max - mn) / 16), code = min(15, floor((x - mn) / s));
// I4 reads mn + s (code + 1/2), I2 reads mn + s (4 (code >> 2) + 2); s == 0 means x = mn exactly.
//
// Invariants. F1: these functions give the same numbers to every compiler and to the disk code.
// F2: regions are disjoint, ordered, 64-byte aligned and cover the page; padding is zero.
// F3: any change of bytes is a new kPageFormatVersion and a new golden file.
struct PageFormat {
  KvKind k = KvKind::kF16;
  KvKind v = KvKind::kF16;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

  // Channels that share one V parameter pair: the largest divisor of D that is at most 64 and a
  // multiple of 16.
  constexpr int32_t VGroup() const {
    for (int32_t g = 64; g > 16; g -= 16) {
      if (head_dim % g == 0) return g;
    }
    return 16;
  }
  constexpr int32_t VGroups() const { return head_dim / VGroup(); }

  // Bytes of one 2-bit plane of one head, and of one F16 tensor of one head.
  constexpr size_t PlaneBytes() const { return size_t{16} * head_dim; }
  constexpr size_t F16Bytes() const { return size_t{2} * kBlockTokens * head_dim; }

  // BASE bytes of one head of K / V. For I4 and I2: plane, then mn, then s.
  constexpr size_t KHeadBytes() const {
    return k == KvKind::kF16 ? F16Bytes() : Align(PlaneBytes() + KParamBytes() * 2);
  }
  constexpr size_t VHeadBytes() const {
    return v == KvKind::kF16 ? F16Bytes() : Align(PlaneBytes() + VParamBytes() * 2);
  }
  // Bytes of one parameter array (mn or s) of one head.
  constexpr size_t KParamBytes() const { return size_t{2} * head_dim; }
  constexpr size_t VParamBytes() const { return size_t{2} * VGroups() * kBlockTokens; }

  // Offsets in BASE.
  constexpr size_t KHead(int32_t head) const { return KHeadBytes() * head; }
  constexpr size_t VHead(int32_t head) const {
    return KHeadBytes() * kv_heads + VHeadBytes() * head;
  }
  constexpr size_t BaseBytes() const { return (KHeadBytes() + VHeadBytes()) * kv_heads; }

  // Offsets in REFINE; meaningful only where that tensor is I4.
  constexpr size_t KRefine(int32_t head) const { return PlaneBytes() * head; }
  constexpr size_t VRefine(int32_t head) const {
    return (k == KvKind::kI4 ? PlaneBytes() * kv_heads : 0) + PlaneBytes() * head;
  }
  constexpr size_t RefineBytes() const {
    return PlaneBytes() * kv_heads * ((k == KvKind::kI4 ? 1 : 0) + (v == KvKind::kI4 ? 1 : 0));
  }
  constexpr size_t Bytes() const { return BaseBytes() + RefineBytes(); }

  friend constexpr bool operator==(const PageFormat&, const PageFormat&) = default;

 private:
  static constexpr size_t Align(size_t n) { return (n + 63) / 64 * 64; }
};

// Offset, in halves, of (token, channel) in one head's F16 K and V.
constexpr int32_t KF16Index(int32_t head_dim, int32_t token, int32_t channel) {
  return (token / 16 * head_dim + channel) * 16 + token % 16;
}
constexpr int32_t VF16Index(int32_t head_dim, int32_t token, int32_t channel) {
  return token * head_dim + channel;
}

// Whether a tensor stored as `stored` can be read as `read` without touching its bytes.
constexpr bool ReadableAs(KvKind stored, KvKind read) {
  return stored == read || (stored == KvKind::kI4 && read == KvKind::kI2);
}

}  // namespace strata
