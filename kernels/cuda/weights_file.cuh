#pragma once

// Reading GGUF blocks byte by byte, as linear_types.h's types lie in a file: for packing, once at
// load. `index` counts the values of a block.

#include "kernels/cuda/weights_layout.cuh"

namespace strata::cuda {

GPU_DEVICE uint32_t HalfAt(const uint8_t* p) { return p[0] | static_cast<uint32_t>(p[1]) << 8; }

// Four-bit codes: byte i holds value i low and value i + 16 high.
GPU_DEVICE uint32_t Nibble(const uint8_t* codes, int32_t index) {
  return index < 16 ? codes[index] & 15 : codes[index - 16] >> 4;
}
GPU_DEVICE uint32_t Bit(const uint8_t* bits, int32_t index) {
  return bits[index / 8] >> index % 8 & 1;
}

// The K types: each 32 bytes hold two sub-blocks of 32 values, the first low.
GPU_DEVICE uint32_t SuperNibble(const uint8_t* codes, int32_t index) {
  return codes[index / 64 * 32 + index % 32] >> (index / 32 % 2 * 4) & 15;
}

// The code as PackedFormat has it: unsigned, `offset` above the value's multiple of the scale.
GPU_DEVICE uint32_t FileCode(WeightType type, const uint8_t* block, int32_t index) {
  switch (type) {
    case WeightType::kQ8_0:
      return block[2 + index] ^ 0x80u;
    case WeightType::kQ4_0:
      return Nibble(block + 2, index);
    case WeightType::kQ4_1:
      return Nibble(block + 4, index);
    case WeightType::kQ5_0:
      return Nibble(block + 6, index) | Bit(block + 2, index) << 4;
    case WeightType::kQ5_1:
      return Nibble(block + 8, index) | Bit(block + 4, index) << 4;
    case WeightType::kQ4_K:
      return SuperNibble(block + 16, index);
    case WeightType::kQ5_K:
      return SuperNibble(block + 48, index) | (block[16 + index % 32] >> index / 32 & 1u) << 4;
    case WeightType::kQ6_K: {
      // Each half of 128 values is four rows of 32.
      const int32_t half = index / 128, row = index % 128 / 32, i = index % 32;
      const uint32_t low = block[half * 64 + row % 2 * 32 + i] >> (row / 2 * 4) & 15;
      const uint32_t upper = block[128 + half * 32 + i] >> (row * 2) & 3;
      return low | upper << 4;
    }
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return 0;
}

// d, and m or dmin, as halves.
GPU_DEVICE uint32_t FileScale(WeightType type, const uint8_t* block) {
  return HalfAt(type == WeightType::kQ6_K ? block + 208 : block);
}
GPU_DEVICE uint32_t FileMinimum(const uint8_t* block) { return HalfAt(block + 2); }

// The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K.
GPU_DEVICE uint32_t FileSubScale(const uint8_t* block, int32_t j) {
  const uint8_t* s = block + 4;
  return j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | static_cast<uint32_t>(s[j - 4] >> 6) << 4;
}
GPU_DEVICE uint32_t FileSubMinimum(const uint8_t* block, int32_t j) {
  const uint8_t* s = block + 4;
  return j < 4 ? s[j + 4] & 63u
               : static_cast<uint32_t>(s[j + 4] >> 4) | static_cast<uint32_t>(s[j] >> 6) << 4;
}

}  // namespace strata::cuda
