#include "server/config/server_options.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cache/layout/geometry.h"

namespace strata {
namespace {

absl::Status CheckAddress(absl::string_view option, absl::string_view address) {
  const size_t colon = address.rfind(':');
  int32_t port = -1;
  const bool number = colon != absl::string_view::npos && colon > 0 &&
                      absl::SimpleAtoi(address.substr(colon + 1), &port);
  if (number && port >= 0 && port <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": '", address, "' is not HOST:PORT with a port of 0 to 65535"));
}

absl::Status CheckBlocks(absl::string_view option, int32_t tokens, int32_t at_least) {
  if (tokens == ServerOptions::kEndlessWindow) return absl::OkStatus();
  if (tokens >= at_least && tokens % kBlockTokens == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", tokens, " is not a multiple of ",
                                                 kBlockTokens, " and at least ", at_least));
}

absl::Status CheckWindows(const CacheSection& cache) {
  STRATA_RETURN_IF_ERROR(CheckBlocks("piece-tokens", cache.piece_tokens, kBlockTokens));
  STRATA_RETURN_IF_ERROR(
      CheckBlocks("sink-tokens", cache.sink_tokens.value_or(kBlockTokens), kBlockTokens));
  // A piece is read while the one before it is still being encoded.
  STRATA_RETURN_IF_ERROR(
      CheckBlocks("hot-window", cache.hot_window.value_or(cache.piece_tokens), cache.piece_tokens));
  return CheckBlocks("warm-window", cache.warm_window.value_or(0), 0);
}

absl::Status CheckCold(const CacheSection& cache) {
  if (cache.cold_bytes.value_or(0) > 0 && cache.cold_path.empty()) {
    return absl::InvalidArgumentError(
        "cold-bytes is set, but cold-path does not say where the cold tier is to lie");
  }
  int32_t next = 0;
  for (const ColdLayers& layers : cache.cold_layers) {
    if (layers.first < next || layers.last < layers.first) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cold-layers: ", layers.first, "-", layers.last, " is out of order or overlaps another"));
    }
    next = layers.last + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  if (model.path.empty()) {
    return absl::InvalidArgumentError("model: not set; --model=FILE.gguf names the model to serve");
  }
  STRATA_RETURN_IF_ERROR(CheckAddress("listen", listen.address));
  if (listen.metrics != "none") {
    STRATA_RETURN_IF_ERROR(CheckAddress("metrics-listen", listen.metrics));
  }
  STRATA_RETURN_IF_ERROR(CheckWindows(cache));
  STRATA_RETURN_IF_ERROR(CheckCold(cache));
  // A step holds a piece of one prompt and a token of every other sequence.
  const int32_t step = cache.piece_tokens + limits.max_sequences - 1;
  if (limits.max_batch_tokens < step) {
    return absl::InvalidArgumentError(absl::StrCat("max-batch-tokens: ", limits.max_batch_tokens,
                                                   " is below ", step,
                                                   ", that is piece-tokens + max-sequences - 1"));
  }
  return absl::OkStatus();
}

}  // namespace strata
