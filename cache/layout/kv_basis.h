#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/layout/geometry.h"

namespace strata {

// The basis in which every tier stores K and V (docs/PAGE_FORMAT.md):
//   v' = H v,  k' = H (d * k) after RoPE,  q' = H (q / d), so q'.k' = q.k,  o = H^T o' after
//   merging.
// H is the normalized Hadamard transform of a head, in blocks of the largest power of two that
// divides the head dim. B1: q'.k' = q.k and H^T H = 1 within F16 rounding. B2: one basis per model
// and store; its hash is part of every block's identity.
struct KvBasis {
  KvGeometry geometry;
  bool rotate_k = false;
  bool rotate_v = false;
  std::vector<float> k_scale;  // d, [layer][kv_head][head_dim]; empty means all ones

  static KvBasis Plain(const KvGeometry& geometry) { return {geometry, false, false, {}}; }
  const float* KScale(int32_t layer) const {
    return k_scale.empty()
               ? nullptr
               : k_scale.data() + size_t{1} * layer * geometry.kv_heads * geometry.head_dim;
  }
  uint64_t Hash() const;  // FNV-1a over every field

  // Channels one Hadamard block spans.
  static constexpr int32_t HadamardBlock(int32_t head_dim) { return head_dim & -head_dim; }
};

}  // namespace strata
