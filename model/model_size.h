#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace strata {

// What a model takes on a CPU, without loading it.
struct ModelSize {
  ModelConfig config;
  size_t weight_bytes = 0;  // as Model::weight_bytes
  std::string weight_format;

  // Memory of a step of `rows` rows of which `logit_rows` are sampled, beside the cache.
  size_t StepBytes(int32_t rows, int32_t logit_rows) const;
};

// Reads the header and the small tensors of a GGUF file, not its matrices. The errors of
// Model::Load, but for those of the tokenizer.
absl::StatusOr<ModelSize> MeasureModel(const std::string& path);

}  // namespace strata
