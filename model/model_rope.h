#pragma once

#include "absl/status/status.h"
#include "model/model_config.h"

namespace strata {

// Fills the RoPE fields of `config` (frequencies with all scaling applied, magnitude) from the
// metadata and, for Llama 3, the tensor rope_freqs.weight. head_dim must be set.
absl::Status ReadRope(const GgufFile& file, ModelConfig* config);

}  // namespace strata
