#pragma once

#include <cstddef>
#include <cstdint>

// What the page codec asks of the objects built for one instruction set: one head's tensor at a
// time. All of them do the operations of page_format.h in the same precision: equal bytes.
namespace strata {

struct EncodeArgs {
  const uint16_t* source;  // one head's F16 K or V
  int32_t head_dim;
  int32_t v_group;  // channels that share a V parameter pair; unused for K
  uint8_t* base;    // hi plane, then mn, then s
  uint8_t* lo;      // lo plane, or null
};

struct CodecKernels {
  // Whether all halves are finite; count is a multiple of 16.
  bool (*all_finite)(const uint16_t* values, size_t count);
  void (*encode_k)(const EncodeArgs& args);
  void (*encode_v)(const EncodeArgs& args);
};

extern const CodecKernels kCodecScalar;
extern const CodecKernels kCodecAvx2;
extern const CodecKernels kCodecAvx512;

}  // namespace strata
