#include "server/config/server_options.h"

#include "absl/strings/match.h"
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

absl::Status CheckSecurity(const SecuritySection& security, const std::string& listen) {
  const bool tls = !security.tls_cert.empty();
  if (tls != !security.tls_key.empty()) {
    return absl::InvalidArgumentError("tls-cert and tls-key: one is set, the other is not");
  }
  if (!security.tls_client_ca.empty() && !tls) {
    return absl::InvalidArgumentError("tls-client-ca is set, but tls-cert and tls-key are not");
  }
  const bool tokens = !security.token_file.empty() || !security.cache_token_file.empty();
  if (tokens && !tls && !security.plaintext_tokens && !IsLoopback(listen)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token-file: tokens would cross the network to ", listen,
                     " in plain text; set tls-cert and tls-key, or plaintext-tokens where "
                     "something else encrypts the way"));
  }
  return absl::OkStatus();
}

absl::Status CheckSize(absl::string_view option, uint64_t bytes, uint64_t at_least,
                       uint64_t at_most) {
  if (bytes >= at_least && bytes <= at_most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", bytes, " bytes; ", at_least, " to ", at_most, " are possible"));
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

bool IsLoopback(absl::string_view address) {
  const absl::string_view host = address.substr(0, address.rfind(':'));
  const bool ipv4 = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "[::1]" || (ipv4 && absl::StartsWith(host, "127."));
}

absl::Status ServerOptions::Validate() const {
  if (model.path.empty()) {
    return absl::InvalidArgumentError("model: not set; --model=FILE.gguf names the model to serve");
  }
  STRATA_RETURN_IF_ERROR(CheckAddress("listen", listen.address));
  if (listen.metrics != "none") {
    STRATA_RETURN_IF_ERROR(CheckAddress("metrics-listen", listen.metrics));
  }
  if (listen.health != "none") {
    STRATA_RETURN_IF_ERROR(CheckAddress("health-listen", listen.health));
  }
  STRATA_RETURN_IF_ERROR(CheckSecurity(security, listen.address));
  STRATA_RETURN_IF_ERROR(
      CheckSize("max-message-bytes", limits.max_message_bytes, 64 << 10, 1 << 30));
  STRATA_RETURN_IF_ERROR(
      CheckSize("max-metadata-bytes", limits.max_metadata_bytes, 4 << 10, 1 << 20));
  if (device.device.kind == DeviceChoice::Kind::kCpu && device.warm_attention != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("warm-attention: '", device.warm_attention,
                                                   "' needs a GPU, but device is cpu"));
  }
  if (device.gather_bytes.has_value()) {
    if (device.device.kind == DeviceChoice::Kind::kCpu) {
      return absl::InvalidArgumentError(
          absl::StrCat("gather-bytes: ", *device.gather_bytes, " needs a GPU, but device is cpu"));
    }
    if (device.warm_attention == "host") {
      return absl::InvalidArgumentError(
          absl::StrCat("gather-bytes: ", *device.gather_bytes,
                       " is for a GPU that attends to host pages, but warm-attention is host"));
    }
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
