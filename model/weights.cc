#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/half.h"
#include "base/status_macros.h"

namespace strata {
namespace {

// One matrix of a stack.
struct Part {
  std::string name;
  int32_t out_features;
};

// Takes tensors out of a file, checking names and shapes, and remembers which were taken.
class TensorLoader {
 public:
  TensorLoader(const GgufFile& file, Backend* backend)
      : file_(file), linear_(backend->linear.get()), memory_(backend->memory.get()) {}

  absl::StatusOr<std::unique_ptr<WeightMatrix>> Matrix(std::initializer_list<Part> parts,
                                                       int32_t in_features) {
    std::vector<WeightSource> sources;
    for (const Part& part : parts) {
      STRATA_ASSIGN_OR_RETURN(const GgufTensor* tensor,
                              Take(part.name, {in_features, part.out_features}));
      sources.push_back({tensor->type, part.out_features, in_features, tensor->data});
      ++types_[tensor->type];
    }
    auto matrix = linear_->Prepare(sources);
    if (!matrix.ok()) {
      return absl::Status(matrix.status().code(),
                          absl::StrCat(file_.path(), ": tensor '", parts.begin()->name,
                                       "': ", matrix.status().message()));
    }
    bytes_ += (*matrix)->bytes();
    return matrix;
  }

  // Stacks vectors, as biases stack when their matrices do.
  absl::StatusOr<DeviceFloats> Vector(std::initializer_list<Part> parts) {
    std::vector<float> values;
    for (const Part& part : parts) {
      STRATA_ASSIGN_OR_RETURN(const GgufTensor* tensor, Take(part.name, {part.out_features}));
      const size_t start = values.size();
      values.resize(start + part.out_features);
      STRATA_RETURN_IF_ERROR(Convert(*tensor, part.out_features, values.data() + start));
    }
    bytes_ += values.size() * sizeof(float);
    return DeviceFloats::Upload(values, memory_);
  }

  void Ignore(absl::string_view name) { taken_.insert(std::string(name)); }

  absl::Status CheckAllTaken() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (taken_.contains(tensor.name)) continue;
      return absl::UnimplementedError(absl::StrCat(file_.path(), ": tensor '", tensor.name,
                                                   "' belongs to no known part of the model"));
    }
    return absl::OkStatus();
  }

  size_t bytes() const { return bytes_; }
  std::string CommonestType() const {
    const auto most =
        std::max_element(types_.begin(), types_.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return InfoOf(most->first).name;
  }

 private:
  absl::StatusOr<const GgufTensor*> Take(const std::string& name,
                                         const std::vector<int64_t>& dims) {
    const GgufTensor* tensor = file_.Find(name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": tensor '", name, "' is missing"));
    }
    if (tensor->dims != dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor '", name, "' has the shape [", absl::StrJoin(tensor->dims, ", "),
          "], expected [", absl::StrJoin(dims, ", "), "]"));
    }
    taken_.insert(name);
    return tensor;
  }

  absl::Status Convert(const GgufTensor& tensor, int32_t size, float* out) const {
    if (tensor.type == WeightType::kF32) {
      std::memcpy(out, tensor.data, size * sizeof(float));
    } else if (tensor.type == WeightType::kF16) {
      for (int32_t i = 0; i < size; ++i) {
        Half half;
        std::memcpy(&half, tensor.data + i * sizeof(Half), sizeof(Half));
        out[i] = HalfToFloat(half);
      }
    } else {
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": tensor '", tensor.name, "' is a vector of type ",
                       InfoOf(tensor.type).name, " (F32 and F16 are supported)"));
    }
    for (int32_t i = 0; i < size; ++i) {
      if (!std::isfinite(out[i])) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": tensor '", tensor.name, "' is not finite at ", i));
      }
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  LinearOps* linear_;
  DeviceMemory* memory_;
  absl::flat_hash_set<std::string> taken_;
  std::map<WeightType, int> types_;  // matrices of each type
  size_t bytes_ = 0;
};

absl::StatusOr<LayerWeights> LoadLayer(const ModelConfig& config, int32_t index,
                                       TensorLoader* loader) {
  const auto name = [index](absl::string_view suffix) {
    return absl::StrCat("blk.", index, ".", suffix);
  };
  const int32_t q_width = config.query_heads * config.head_dim;
  const int32_t kv_width = config.kv_heads * config.head_dim;
  LayerWeights layer;
  STRATA_ASSIGN_OR_RETURN(layer.attention_norm,
                          loader->Vector({{name("attn_norm.weight"), config.width}}));
  STRATA_ASSIGN_OR_RETURN(layer.qkv, loader->Matrix({{name("attn_q.weight"), q_width},
                                                     {name("attn_k.weight"), kv_width},
                                                     {name("attn_v.weight"), kv_width}},
                                                    config.width));
  if (config.qkv_bias) {
    STRATA_ASSIGN_OR_RETURN(layer.qkv_bias, loader->Vector({{name("attn_q.bias"), q_width},
                                                            {name("attn_k.bias"), kv_width},
                                                            {name("attn_v.bias"), kv_width}}));
  }
  if (config.qk_norm) {
    STRATA_ASSIGN_OR_RETURN(layer.q_norm,
                            loader->Vector({{name("attn_q_norm.weight"), config.head_dim}}));
    STRATA_ASSIGN_OR_RETURN(layer.k_norm,
                            loader->Vector({{name("attn_k_norm.weight"), config.head_dim}}));
  }
  STRATA_ASSIGN_OR_RETURN(layer.attention_output,
                          loader->Matrix({{name("attn_output.weight"), config.width}}, q_width));
  STRATA_ASSIGN_OR_RETURN(layer.ffn_norm,
                          loader->Vector({{name("ffn_norm.weight"), config.width}}));
  STRATA_ASSIGN_OR_RETURN(layer.gate_up,
                          loader->Matrix({{name("ffn_gate.weight"), config.ffn_width},
                                          {name("ffn_up.weight"), config.ffn_width}},
                                         config.width));
  STRATA_ASSIGN_OR_RETURN(
      layer.down, loader->Matrix({{name("ffn_down.weight"), config.width}}, config.ffn_width));
  return layer;
}

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const GgufFile& file, const ModelConfig& config,
                                         Backend* backend) {
  ModelWeights weights;
  TensorLoader loader(file, backend);
  STRATA_ASSIGN_OR_RETURN(weights.embedding,
                          loader.Matrix({{"token_embd.weight", config.vocab_size}}, config.width));
  if (!config.tied_embeddings) {
    STRATA_ASSIGN_OR_RETURN(weights.output,
                            loader.Matrix({{"output.weight", config.vocab_size}}, config.width));
  }
  STRATA_ASSIGN_OR_RETURN(weights.output_norm,
                          loader.Vector({{"output_norm.weight", config.width}}));
  file.DropResidentPages();
  for (int32_t i = 0; i < config.layers; ++i) {
    STRATA_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(config, i, &loader));
    weights.layers.push_back(std::move(layer));
    file.DropResidentPages();
  }
  loader.Ignore("rope_freqs.weight");  // ReadModelConfig has read it
  STRATA_RETURN_IF_ERROR(loader.CheckAllTaken());
  weights.bytes = loader.bytes();
  weights.format = loader.CommonestType();
  return weights;
}

}  // namespace strata
