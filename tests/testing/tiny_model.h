#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/linear_ops.h"
#include "tests/model/gguf_builder.h"

namespace strata {

// A model of random weights, small enough to load in milliseconds. Its text is nonsense but its
// arithmetic and its tokenizer (byte-level BPE, a few merges, ChatML's special tokens) are real.
struct TinyModelOptions {
  std::string architecture = "llama";  // or qwen2 (with biases), qwen3 (with norms)
  WeightType type = WeightType::kQ8_0;
  int32_t layers = 2;
  int32_t width = 64;  // widths must suit the type: multiples of 32, of 256 for K-quants
  int32_t query_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 32;
  int32_t ffn_width = 96;
  int32_t context_length = 4096;
  // Untied models give special tokens a logit of 0, so that generation hardly ever ends by itself.
  bool tied_embeddings = false;
  uint32_t seed = 1;
};

// Adds metadata and tensors to `builder`. To change one thing, add it first and Skip() its name.
void AddTinyModel(const TinyModelOptions& options, GgufBuilder* builder);

// Writes the model to a file.
void WriteTinyModel(const TinyModelOptions& options, const std::string& path);

// The tokens of its vocabulary; ids 0, 1 and 2 are <|endoftext|>, <|im_start|> and <|im_end|> (the
// EOS).
const std::vector<std::string>& TinyVocabulary();

}  // namespace strata
