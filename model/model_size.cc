#include "model/model_size.h"

#include <memory>

#include "base/status_macros.h"
#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/transformer.h"
#include "model/weights.h"

namespace strata {

absl::StatusOr<ModelSize> MeasureModel(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  ModelSize size;
  STRATA_ASSIGN_OR_RETURN(size.config, ReadModelConfig(*file));
  Backend sizing;
  sizing.memory = MakeHostMemory();
  sizing.linear = CreateSizingLinear();
  STRATA_ASSIGN_OR_RETURN(const ModelWeights weights, LoadWeights(*file, size.config, &sizing));
  size.weight_bytes = weights.bytes;
  size.weight_format = weights.format;
  return size;
}

size_t ModelSize::StepBytes(int32_t rows, int32_t logit_rows) const {
  // Partial attention states: o, m and l of every row and head.
  const size_t states =
      size_t{4} * rows * config.query_heads * (static_cast<size_t>(config.head_dim) + 2);
  const size_t logits = size_t{4} * logit_rows * config.vocab_size;
  return Transformer::ScratchBytes(config, rows) + states + logits;
}

}  // namespace strata
