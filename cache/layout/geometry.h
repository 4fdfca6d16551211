#pragma once

#include <cstdint>

namespace strata {

// Tokens in a block, and so in a page. Part of the page format: never changes within a version.
inline constexpr int32_t kBlockTokens = 64;

// The shape of a model's KV cache.
struct KvGeometry {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;  // channels a head: a multiple of 16, 16..256

  // Values (K and V together) that one token stores over all layers.
  constexpr int64_t ValuesPerToken() const { return int64_t{2} * layers * kv_heads * head_dim; }
  constexpr bool Valid() const {
    return layers > 0 && kv_heads > 0 && head_dim >= 16 && head_dim <= 256 && head_dim % 16 == 0;
  }
  friend constexpr bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

// Block b of a sequence holds its tokens [64 b, 64 b + 64) (invariant T1).
constexpr int32_t BlockOfToken(int32_t position) { return position / kBlockTokens; }
constexpr int32_t BlocksForTokens(int32_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace strata
