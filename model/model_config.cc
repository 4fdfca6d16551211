#include "model/model_config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/gguf_file.h"
#include "model/model_metadata.h"
#include "model/model_rope.h"

namespace strata {
namespace {

// Far above any model that fits a machine, low enough that products of two fit 64 bits.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = 1 << 17;
constexpr int64_t kMaxFfnWidth = 1 << 20;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxVocabulary = 1 << 22;
constexpr int64_t kMaxContext = 1 << 24;

// Features whose metadata changes the arithmetic and which this code does not have.
constexpr absl::string_view kUnsupportedKeys[] = {
    "attn_logit_softcapping",   "final_logit_softcapping",   "attention.scale",
    "attention.clamp_kqv",      "attention.max_alibi_bias",  "logit_scale",
    "residual_scale",           "embedding_scale",           "attention.temperature_scale",
    "attention.key_length_mla", "interleave_moe_layer_step",
};

absl::Status Unsupported(const GgufFile& file, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(file.path(), ": ", what, " is not supported"));
}

absl::Status RefuseUnsupported(const GgufFile& file, const ModelMetadata& metadata,
                               const ModelConfig& config) {
  for (const absl::string_view key : kUnsupportedKeys) {
    if (metadata.Has(key)) return Unsupported(file, absl::StrCat("'", metadata.Key(key), "'"));
  }
  if (metadata.Has("expert_count")) {
    STRATA_ASSIGN_OR_RETURN(const int32_t experts, metadata.Int("expert_count", 0, 1 << 20));
    if (experts > 0) {
      return Unsupported(file, absl::StrCat("a mixture of ", experts, " experts"));
    }
  }
  if (metadata.Has("attention.causal")) {
    STRATA_ASSIGN_OR_RETURN(const bool causal, file.Bool(metadata.Key("attention.causal")));
    if (!causal) return Unsupported(file, "attention that is not causal");
  }
  STRATA_ASSIGN_OR_RETURN(const int32_t window,
                          metadata.Int("attention.sliding_window", 0, kMaxContext, 0));
  if (window > 0 && window < config.context_length) {
    return Unsupported(file, absl::StrCat("a sliding window of ", window,
                                          " tokens in a context of ", config.context_length));
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const GgufFile& file, const ModelMetadata& metadata, ModelConfig* config) {
  STRATA_ASSIGN_OR_RETURN(config->query_heads, metadata.Int("attention.head_count", 1, kMaxHeads));
  STRATA_ASSIGN_OR_RETURN(
      config->kv_heads, metadata.Int("attention.head_count_kv", 1, kMaxHeads, config->query_heads));
  if (config->query_heads % config->kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", config->query_heads,
                                                   " query heads cannot share ", config->kv_heads,
                                                   " KV heads evenly"));
  }
  const int32_t quotient = config->width / config->query_heads;
  if (!metadata.Has("attention.key_length") && config->width % config->query_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": an embedding length of ",
                                                   config->width, " does not divide into ",
                                                   config->query_heads, " heads"));
  }
  STRATA_ASSIGN_OR_RETURN(config->head_dim,
                          metadata.Int("attention.key_length", 1, kMaxWidth, quotient));
  STRATA_ASSIGN_OR_RETURN(const int32_t value_dim,
                          metadata.Int("attention.value_length", 1, kMaxWidth, config->head_dim));
  if (value_dim != config->head_dim) {
    return Unsupported(file, absl::StrCat("a value length of ", value_dim,
                                          " beside a key length of ", config->head_dim));
  }
  if (!config->Geometry().Valid()) {
    return Unsupported(file, absl::StrCat("a head dim of ", config->head_dim,
                                          " (multiples of 16 from 16 to 256 are)"));
  }
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const GgufFile& file, ModelConfig* config) {
  const GgufTensor* embedding = file.Find("token_embd.weight");
  if (embedding == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tensor 'token_embd.weight' is missing"));
  }
  const int64_t vocabulary = embedding->dims.size() == 2 ? embedding->dims[1] : 0;
  if (vocabulary < 1 || vocabulary > kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor 'token_embd.weight' must be a matrix of 1 to ", kMaxVocabulary,
        " rows, it has ", embedding->dims.size(), " dimensions and ", vocabulary, " rows"));
  }
  config->vocab_size = static_cast<int32_t>(vocabulary);
  config->tied_embeddings = file.Find("output.weight") == nullptr;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfig config;
  STRATA_ASSIGN_OR_RETURN(const absl::string_view architecture,
                          file.String("general.architecture"));
  config.architecture = std::string(architecture);
  if (architecture != "llama" && architecture != "qwen2" && architecture != "qwen3") {
    return Unsupported(file, absl::StrCat("architecture '", architecture.substr(0, 64),
                                          "' (llama, qwen2 and qwen3 are)"));
  }
  if (file.Has("general.name")) {
    STRATA_ASSIGN_OR_RETURN(const absl::string_view name, file.String("general.name"));
    config.name = std::string(name);
  }
  const ModelMetadata metadata(file, architecture);
  STRATA_ASSIGN_OR_RETURN(config.layers, metadata.Int("block_count", 1, kMaxLayers));
  STRATA_ASSIGN_OR_RETURN(config.width, metadata.Int("embedding_length", 1, kMaxWidth));
  STRATA_ASSIGN_OR_RETURN(config.ffn_width, metadata.Int("feed_forward_length", 1, kMaxFfnWidth));
  STRATA_ASSIGN_OR_RETURN(config.context_length, metadata.Int("context_length", 1, kMaxContext));
  STRATA_ASSIGN_OR_RETURN(config.norm_epsilon,
                          metadata.Float("attention.layer_norm_rms_epsilon", 0.0, 0.1));
  STRATA_RETURN_IF_ERROR(ReadHeads(file, metadata, &config));
  STRATA_RETURN_IF_ERROR(RefuseUnsupported(file, metadata, config));
  STRATA_RETURN_IF_ERROR(ReadVocabulary(file, &config));
  // Biases are a property of the checkpoint, told by its tensors; the norms are the architecture's.
  config.qkv_bias = architecture == "qwen2" || file.Find("blk.0.attn_q.bias") != nullptr;
  config.qk_norm = architecture == "qwen3";
  // Converted Llama weights have their rows permuted so that pairs are adjacent.
  config.rope_pairing =
      architecture == "llama" ? RopeParams::Pairing::kInterleaved : RopeParams::Pairing::kHalves;
  STRATA_RETURN_IF_ERROR(ReadRope(file, &config));
  return config;
}

}  // namespace strata
