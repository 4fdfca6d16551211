#pragma once

#include <cstdint>

#include "kernels/cuda/matmul_launch.h"

// What launches demand of packed weights.
namespace strata::cuda {

inline constexpr int32_t kPackedFeaturesMax = 1 << 24;  // kMaxFeatures of linear_ops.h
inline constexpr int32_t kGridRowsMax = 65535;          // blocks of a grid's y

inline bool Aligned256(const void* p) {
  return p != nullptr && reinterpret_cast<uintptr_t>(p) % 256 == 0;
}

inline bool ValidPacked(const PackedWeights& w) {
  return PackedWeightBytes(w.type, w.out_features, w.in_features) > 0 && Aligned256(w.data);
}

}  // namespace strata::cuda
