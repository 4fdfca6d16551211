#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/layout/kv_basis.h"
#include "kernels/page_codec.h"
#include "model/kv_measurement.h"
#include "model/model_config.h"
#include "model/tokenizer.h"
#include "model/transformer.h"

namespace strata {

// Tokens the measurement looks at: any more change d by less than its use can notice.
inline constexpr int32_t kCalibrationTokens = 1024;

// Sums of squares from which the K equalizer follows, per layer, KV head and channel:
//   d = (E q^2 / Var k)^(1/4)
// It makes the channels of d k and of q / d equally important, so that rotating them spreads error
// evenly. Var is within a page (a page's codes remove its mean), over full pages but the first, the
// attention sink; E q^2 is over tokens past the first page and all query heads of the KV head.
class BasisMoments {
 public:
  explicit BasisMoments(const KvGeometry& geometry);

  // q: [heads_per_kv x kv_heads][head_dim] of one token, k: [64][head_dim] of one page and KV head.
  void AddQueries(int32_t layer, int32_t query_heads, const float* q);
  void AddKeys(int32_t layer, int32_t kv_head, const float* k);

  // d, [layer][kv_head][head_dim], scaled to a geometric mean of 1 a head (which changes no product
  // and keeps d k in range of F16), within [1/kMaxScale, kMaxScale]. A channel without a finite
  // measurement gets 1.
  std::vector<float> Scales() const;

  static constexpr float kMaxScale = 64.0f;

 private:
  size_t Index(int32_t layer, int32_t kv_head) const {
    return (size_t{1} * layer * geometry_.kv_heads + kv_head) * geometry_.head_dim;
  }
  void HeadScales(size_t index, float* scales) const;  // of the head whose channels start there

  KvGeometry geometry_;
  std::vector<double> q_squares_;    // sums, [layer][kv_head][head_dim]
  std::vector<double> k_variances_;  // of values less their page's mean
  std::vector<double> k_squares_;    // of values as they are
};

// Runs the model over a text of its own, once for the basis (V rotated, K equalized and rotated)
// and once in that basis for what 2 bits cost each layer. FailedPrecondition when the model's
// context is too short for that. Leaves the transformer in the basis measured.
absl::StatusOr<KvMeasurement> MeasureKv(const ModelConfig& config, const Tokenizer& tokenizer,
                                        const PageCodec& codec, Transformer* transformer);

}  // namespace strata
