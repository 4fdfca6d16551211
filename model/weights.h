#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/linear_ops.h"
#include "model/gguf_file.h"
#include "model/model_config.h"

namespace strata {

struct LayerWeights {
  DeviceFloats attention_norm;        // [width]
  std::unique_ptr<WeightMatrix> qkv;  // Q, K and V stacked
  DeviceFloats qkv_bias;              // stacked alike; empty without biases
  DeviceFloats q_norm;                // [head_dim]; empty without norms
  DeviceFloats k_norm;
  std::unique_ptr<WeightMatrix> attention_output;
  DeviceFloats ffn_norm;                  // [width]
  std::unique_ptr<WeightMatrix> gate_up;  // gate and up stacked
  std::unique_ptr<WeightMatrix> down;
};

// A model's tensors, prepared for one backend. Immutable once loaded.
struct ModelWeights {
  std::unique_ptr<WeightMatrix> embedding;
  std::unique_ptr<WeightMatrix> output;  // null: tied to the embedding
  DeviceFloats output_norm;
  std::vector<LayerWeights> layers;
  size_t bytes = 0;    // of everything above
  std::string format;  // the commonest type of its matrices, "Q4_1"

  const WeightMatrix& Output() const { return output != nullptr ? *output : *embedding; }
};

// Prepares every tensor of the model. Memory stays near the size of what is prepared: the file's
// pages are dropped as soon as a layer is done. An error names the tensor; a tensor that nothing
// here uses is refused, because the model's arithmetic would then not be what its maker meant.
absl::StatusOr<ModelWeights> LoadWeights(const GgufFile& file, const ModelConfig& config,
                                         Backend* backend);

}  // namespace strata
