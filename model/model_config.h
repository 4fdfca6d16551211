#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/layout/geometry.h"
#include "kernels/linear_ops.h"

namespace strata {

class GgufFile;

// What the metadata of a model file says about its shape. Filled and validated by ReadModelConfig.
struct ModelConfig {
  std::string architecture;  // llama, qwen2 or qwen3
  std::string name;
  int32_t layers = 0;
  int32_t width = 0;  // embedding length
  int32_t ffn_width = 0;
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  float norm_epsilon = 0;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  RopeParams::Pairing rope_pairing = RopeParams::Pairing::kInterleaved;
  int32_t rope_dim = 0;
  float rope_magnitude = 1.0f;
  std::vector<float> rope_frequency;  // [rope_dim / 2], scaling applied

  KvGeometry Geometry() const { return {layers, kv_heads, head_dim}; }
};

// Reads the shape of a llama, qwen2 or qwen3 model. InvalidArgument for values that no model can
// have; Unimplemented, by name, for an architecture or a feature that is not supported: a model
// must never run with part of its arithmetic left out.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace strata
