#include "tiering/tier_options.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cache/layout/record_layout.h"

namespace strata {
namespace {

constexpr int32_t kLayersMax = 512;  // what a record descriptor has room for
constexpr int32_t kIoDepthMax = 4096;

bool Known(KvKind kind) {
  return kind == KvKind::kF16 || kind == KvKind::kI4 || kind == KvKind::kI2;
}

absl::Status CheckLayer(int32_t layer, const TensorKinds& warm, const TensorKinds& cold) {
  for (KvKind kind : {warm.k, warm.v, cold.k, cold.v}) {
    if (!Known(kind)) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, ": unknown page kind ", static_cast<int>(kind)));
    }
  }
  if (!ReadableAs(warm.k, cold.k) || !ReadableAs(warm.v, cold.v)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer,
                     ": the cold kind of K or V cannot be had from its warm kind by dropping bits "
                     "(I4 gives I4 or I2; any other kind only itself)"));
  }
  return absl::OkStatus();
}

absl::Status CheckFormats(const TierOptions& options) {
  const size_t layers = options.geometry.layers;
  if (options.formats.warm.size() != layers || options.formats.cold.size() != layers) {
    return absl::InvalidArgumentError(absl::StrCat("formats of ", options.formats.warm.size(),
                                                   " warm and ", options.formats.cold.size(),
                                                   " cold layers for a model of ", layers));
  }
  for (size_t i = 0; i < layers; ++i) {
    STRATA_RETURN_IF_ERROR(
        CheckLayer(static_cast<int32_t>(i), options.formats.warm[i], options.formats.cold[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckCold(const TierOptions& options) {
  if (options.io_engine != "auto" && options.io_engine != "io_uring" &&
      options.io_engine != "threads") {
    return absl::InvalidArgumentError(absl::StrCat("io_engine is \"", options.io_engine,
                                                   "\"; it can be auto, io_uring or threads"));
  }
  if (options.io_depth_max < 1 || options.io_depth_max > kIoDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("io_depth_max is ", options.io_depth_max, "; 1 to ", kIoDepthMax));
  }
  if (options.cold_unit_bytes < RecordLayout::kAlignment) {
    return absl::InvalidArgumentError(absl::StrCat("cold_unit_bytes is ", options.cold_unit_bytes,
                                                   "; at least ", RecordLayout::kAlignment));
  }
  if (options.cold_bytes == 0) return absl::OkStatus();
  if (options.cold_path.empty()) {
    return absl::InvalidArgumentError("cold_bytes is set but cold_path is empty");
  }
  if (options.staging_bytes == 0) {
    return absl::InvalidArgumentError("cold_bytes is set but staging_bytes is 0");
  }
  return absl::OkStatus();
}

}  // namespace

TierFormats TierFormats::Uniform(int32_t layers, TensorKinds warm, TensorKinds cold) {
  TierFormats formats;
  formats.warm.assign(layers, warm);
  formats.cold.assign(layers, cold);
  return formats;
}

void TierFormats::KeepK(int32_t count, absl::Span<const float> k_errors) {
  const auto layers = static_cast<int32_t>(cold.size());
  STRATA_CHECK(k_errors.empty() || k_errors.size() == cold.size());
  std::vector<int32_t> order;
  for (int32_t i = 0; i < layers; ++i) order.push_back(i % 2 == 0 ? i / 2 : layers - 1 - i / 2);
  if (!k_errors.empty()) {
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return k_errors[a] != k_errors[b] ? k_errors[a] > k_errors[b] : a < b;
    });
  }
  for (int32_t i = 0; i < std::min(count, layers); ++i) cold[order[i]].k = warm[order[i]].k;
}

absl::Status TierOptions::Validate() const {
  if (!geometry.Valid() || geometry.layers > kLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("geometry of ", geometry.layers, " layers, ", geometry.kv_heads,
                     " KV heads and head dim ", geometry.head_dim, "; 1 to ", kLayersMax,
                     " layers, at least one head, and a head dim of 16 to 256 in steps of 16"));
  }
  if (piece_tokens <= 0 || piece_tokens % kBlockTokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece_tokens is ", piece_tokens, "; a multiple of ", kBlockTokens));
  }
  if (max_sequences < 1 || max_context < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_sequences is ", max_sequences, " and max_context ", max_context, "; both at least 1"));
  }
  if (hot_bytes == 0) return absl::InvalidArgumentError("hot_bytes is 0");
  STRATA_RETURN_IF_ERROR(CheckFormats(*this));
  return CheckCold(*this);
}

}  // namespace strata
