#pragma once

#include <cstddef>
#include <cstdint>

// The plain types of linear_ops.h, which device code shares.
namespace strata {

// Storage of a weight tensor, as GGUF defines it.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

struct WeightTypeInfo {
  const char* name;
  int32_t block_values;  // values a block; a row is whole blocks
  int32_t block_bytes;
};
inline constexpr int kWeightTypes = 11;
// In the order of WeightType.
inline constexpr WeightTypeInfo kWeightTypeInfo[kWeightTypes] = {
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},     {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},   {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210},
};
const WeightTypeInfo& InfoOf(WeightType type);

// A matrix as it lies in the model file, borrowed: out_features rows of in_features values.
struct WeightSource {
  WeightType type = WeightType::kF32;
  int32_t out_features = 0;
  int32_t in_features = 0;
  const std::byte* data = nullptr;
};

// Bytes of one row as the file stores it. in_features must be whole blocks.
size_t RowBytes(WeightType type, int32_t in_features);

// RoPE as metadata describes it. frequency[i] is the angle a position of pair i, in radians.
struct RopeParams {
  enum class Pairing : uint8_t { kInterleaved, kHalves };  // (2i, 2i+1) or (i, i + dim/2)
  Pairing pairing = Pairing::kInterleaved;
  int32_t dim = 0;                   // rotated channels, the first of each head
  const float* frequency = nullptr;  // [dim / 2]
  float magnitude = 1.0f;            // factor of cos and sin (YaRN)
};

// Where one row's K and V go: an F16 page in the layout of page_format.h and a token in it.
struct AppendTarget {
  std::byte* page = nullptr;
  int32_t token = 0;
};

// One layer's q, k and v on their way into the cache.
struct RopeAppendArgs {
  int32_t rows = 0;
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  const float* qkv = nullptr;          // [rows][query_heads + 2 kv_heads][head_dim]
  const int32_t* positions = nullptr;  // [rows]
  const float* q_norm = nullptr;       // [head_dim] RMS norm weights before RoPE, or null
  const float* k_norm = nullptr;
  float norm_epsilon = 0;
  RopeParams rope;
  bool rotate_k = false;  // the basis of kv_basis.h
  bool rotate_v = false;
  const float* k_scale = nullptr;         // [kv_heads][head_dim] or null for ones
  const AppendTarget* targets = nullptr;  // [rows]
  float* q = nullptr;                     // out: [rows][query_heads][head_dim], stored basis, times
                                          // 1/sqrt(head_dim)
};

}  // namespace strata
