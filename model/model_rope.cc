#include "model/model_rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/gguf_file.h"
#include "model/model_metadata.h"

namespace strata {
namespace {

constexpr double kMaxFactor = 1e4;
constexpr double kMaxBase = 1e12;

// YaRN (Peng et al., 2023): pairs that turn often within the original context keep their frequency,
// pairs that turn less than once are interpolated, those between are blended linearly.
struct Yarn {
  double factor = 1;            // s: how far the context is stretched
  double original_context = 0;  // L
  double beta_fast = 32;        // turns above which a pair is left alone
  double beta_slow = 1;         // turns below which it is interpolated
  double attention_factor = 1;

  // The (fractional) pair that makes `turns` turns within the original context.
  static double PairOfTurns(double turns, double context, double base, int32_t dim) {
    return dim * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  }

  void Apply(double base, int32_t dim, std::vector<double>* frequency) const {
    const double low =
        std::max(0.0, std::floor(PairOfTurns(beta_fast, original_context, base, dim)));
    const double high =
        std::min(dim - 1.0, std::ceil(PairOfTurns(beta_slow, original_context, base, dim)));
    const double width = std::max(high - low, 0.001);
    for (size_t i = 0; i < frequency->size(); ++i) {
      const double interpolate = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
      (*frequency)[i] *= (1 - interpolate) + interpolate / factor;
    }
  }
  // sqrt(1 / t) of the paper; it multiplies both q and k.
  double Magnitude() const { return (0.1 * std::log(factor) + 1) * attention_factor; }
};

absl::StatusOr<Yarn> ReadYarn(const ModelMetadata& metadata, const ModelConfig& config) {
  Yarn yarn;
  STRATA_ASSIGN_OR_RETURN(yarn.factor, metadata.Float("rope.scaling.factor", 1, kMaxFactor));
  STRATA_ASSIGN_OR_RETURN(
      yarn.original_context,
      metadata.Int("rope.scaling.original_context_length", 1, config.context_length));
  STRATA_ASSIGN_OR_RETURN(yarn.beta_fast,
                          metadata.Float("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32));
  STRATA_ASSIGN_OR_RETURN(yarn.beta_slow,
                          metadata.Float("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1));
  STRATA_ASSIGN_OR_RETURN(yarn.attention_factor,
                          metadata.Float("rope.scaling.attn_factor", 1e-3, 1e3, 1));
  return yarn;
}

// The name of the scaling; files without one that give a factor mean linear.
absl::StatusOr<std::string> ScalingType(const GgufFile& file, const ModelMetadata& metadata) {
  if (!metadata.Has("rope.scaling.type")) {
    return std::string(metadata.Has("rope.scaling.factor") || metadata.Has("rope.scale_linear")
                           ? "linear"
                           : "none");
  }
  STRATA_ASSIGN_OR_RETURN(const absl::string_view type,
                          file.String(metadata.Key("rope.scaling.type")));
  return std::string(type);
}

absl::Status ApplyScaling(const GgufFile& file, const ModelMetadata& metadata, double base,
                          ModelConfig* config, std::vector<double>* frequency) {
  STRATA_ASSIGN_OR_RETURN(const std::string type, ScalingType(file, metadata));
  if (type == "none") return absl::OkStatus();
  if (type == "linear") {
    const char* key =
        metadata.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    // Some converters write 0 for "no scaling".
    STRATA_ASSIGN_OR_RETURN(const float factor, metadata.Float(key, 0, kMaxFactor));
    if (factor != 0) {
      for (double& f : *frequency) f /= factor;
    }
    return absl::OkStatus();
  }
  if (type == "yarn") {
    STRATA_ASSIGN_OR_RETURN(const Yarn yarn, ReadYarn(metadata, *config));
    yarn.Apply(base, config->rope_dim, frequency);
    config->rope_magnitude = static_cast<float>(yarn.Magnitude());
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(file.path(), ": RoPE scaling '", type.substr(0, 64),
                                               "' is not supported (none, linear and yarn are)"));
}

// Llama 3's scaling: one divisor a pair, worked out by the converter.
absl::Status ApplyFactors(const GgufFile& file, std::vector<double>* frequency) {
  for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    if (file.Find(name) != nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(file.path(), ": tensor '", name, "' (LongRoPE) is not supported"));
    }
  }
  const GgufTensor* tensor = file.Find("rope_freqs.weight");
  if (tensor == nullptr) return absl::OkStatus();
  if (tensor->type != WeightType::kF32 || tensor->dims.size() != 1 ||
      tensor->dims[0] != static_cast<int64_t>(frequency->size())) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(),
                                                   ": tensor 'rope_freqs.weight' must be ",
                                                   frequency->size(), " values of type F32"));
  }
  for (size_t i = 0; i < frequency->size(); ++i) {
    float factor;
    std::memcpy(&factor, tensor->data + i * sizeof(float), sizeof(float));
    if (!(factor >= 1e-6f && factor <= kMaxFactor)) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": tensor 'rope_freqs.weight' has the factor ", factor, " at ", i));
    }
    (*frequency)[i] /= factor;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRope(const GgufFile& file, ModelConfig* config) {
  const ModelMetadata metadata(file, config->architecture);
  STRATA_ASSIGN_OR_RETURN(config->rope_dim, metadata.Int("rope.dimension_count", 2,
                                                         config->head_dim, config->head_dim));
  if (config->rope_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": a RoPE dimension count of ", config->rope_dim, " is odd"));
  }
  STRATA_ASSIGN_OR_RETURN(const float base,
                          metadata.Float("rope.freq_base", 1.0001, kMaxBase, 10000));
  std::vector<double> frequency(config->rope_dim / 2);
  for (size_t i = 0; i < frequency.size(); ++i) {
    frequency[i] = std::pow(double{base}, -2.0 * static_cast<double>(i) / config->rope_dim);
  }
  STRATA_RETURN_IF_ERROR(ApplyScaling(file, metadata, base, config, &frequency));
  STRATA_RETURN_IF_ERROR(ApplyFactors(file, &frequency));
  config->rope_frequency.assign(frequency.begin(), frequency.end());
  return absl::OkStatus();
}

}  // namespace strata
