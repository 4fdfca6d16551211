#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/layout/page_format.h"

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
const WeightTypeInfo& InfoOf(WeightType type);

// A matrix as it lies in the model file, borrowed: out_features rows of in_features values.
struct WeightSource {
  WeightType type = WeightType::kF32;
  int32_t out_features = 0;
  int32_t in_features = 0;
  const std::byte* data = nullptr;
};

// The most in_features, and the most out_features over all sources, that Prepare takes: sizes in
// bytes then fit in 64 bits whatever a model file claims.
inline constexpr int32_t kMaxFeatures = 1 << 24;

// What every backend's Prepare demands of its sources: at least one, known types, whole blocks,
// positive sizes within kMaxFeatures, one in_features for all. InvalidArgument naming the value and
// the limit.
absl::Status ValidateSources(absl::Span<const WeightSource> sources);

// Bytes of one row as the file stores it. in_features must be whole blocks.
size_t RowBytes(WeightType type, int32_t in_features);

// A matrix prepared for one backend; the source is no longer needed. Opaque, immutable.
class WeightMatrix {
 public:
  virtual ~WeightMatrix() = default;
  virtual int32_t out_features() const = 0;
  virtual int32_t in_features() const = 0;
  virtual size_t bytes() const = 0;  // memory it occupies
};

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

// The dense arithmetic of a forward pass. Activations are row-major float matrices. Each call
// blocks until done; one call at a time (scratch inside). A row's result has the same bits whatever
// the number of rows and threads.
class LinearOps {
 public:
  virtual ~LinearOps() = default;

  // Stacks the sources (same in_features, any types) along out_features into one matrix, so that
  // Q, K and V, or gate and up, are one product. InvalidArgument for a shape the type cannot have.
  virtual absl::StatusOr<std::unique_ptr<WeightMatrix>> Prepare(
      absl::Span<const WeightSource> sources) = 0;

  // y[rows][out] = x[rows][in] W^T (+ bias[out] unless null); with `accumulate`, y += that.
  virtual void Matmul(const WeightMatrix& w, const float* x, int32_t rows, const float* bias,
                      bool accumulate, float* y) = 0;

  // out[i] = row ids[i] of the matrix, dequantized. CHECKs the range of ids.
  virtual void EmbedRows(const WeightMatrix& w, absl::Span<const int32_t> ids, float* out) = 0;

  // y = x * rsqrt(mean(x^2) + epsilon) * weight, row by row; y may be x.
  virtual void RmsNorm(const float* x, const float* weight, int32_t rows, int32_t width,
                       float epsilon, float* y) = 0;

  // gate_up: [rows][2 width], gate first. y[rows][width] = silu(gate) * up.
  virtual void SwiGlu(const float* gate_up, int32_t rows, int32_t width, float* y) = 0;

  // Norms (where given), rotates by position, changes basis, and appends K and V to their pages.
  virtual void RopeAppend(const RopeAppendArgs& args) = 0;

  // o = H^T o, head by head, in place: leaves the stored basis of V. o: [rows][heads][head_dim].
  virtual void UnrotateHeads(int32_t rows, int32_t heads, int32_t head_dim, float* o) = 0;
};

}  // namespace strata
