#include "cache/layout/kv_basis.h"

#include <cstddef>

namespace strata {
namespace {

uint64_t Fnv1a(uint64_t hash, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

uint64_t KvBasis::Hash() const {
  const int32_t header[5] = {geometry.layers, geometry.kv_heads, geometry.head_dim,
                             rotate_k ? 1 : 0, rotate_v ? 1 : 0};
  const uint64_t hash = Fnv1a(0xcbf29ce484222325ULL, header, sizeof(header));
  return Fnv1a(hash, k_scale.data(), k_scale.size() * sizeof(float));
}

}  // namespace strata
