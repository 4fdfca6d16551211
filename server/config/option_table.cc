#include "server/config/option_table.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "server/config/format_name.h"
#include "server/config/option_values.h"

namespace strata {
namespace {

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
constexpr char kAuto[] = "auto";
constexpr char kUnlimited[] = "unlimited";

// Name, what stands for the value, and help of one option.
struct Words {
  const char* name;
  const char* value;
  const char* help;
};

// Collects the table; Field is a function from the options to one of their members.
class Builder {
 public:
  void Group(const char* name) { group_ = name; }
  std::vector<OptionSpec> Take() { return std::move(specs_); }

  template <typename Field>
  void Text(const Words& words, Field field) {
    Add(
        words,
        [field](absl::string_view text, ServerOptions* options) {
          field(*options) = std::string(text);
          return absl::OkStatus();
        },
        [field](const ServerOptions& options) { return Get(field, options); });
  }

  template <typename Field>
  void OneOf(const Words& words, const std::vector<std::string>& allowed, Field field) {
    Add(
        words,
        [field, allowed](absl::string_view text, ServerOptions* options) {
          for (const std::string& value : allowed) {
            if (text != value) continue;
            field(*options) = value;
            return absl::OkStatus();
          }
          return absl::InvalidArgumentError(
              absl::StrCat("'", text, "' is not one of ", absl::StrJoin(allowed, ", ")));
        },
        [field](const ServerOptions& options) { return Get(field, options); });
  }

  template <typename Field>
  void Switch(const Words& words, Field field) {
    Parsed(words, field, ParseBool, [](bool value) { return value ? "true" : "false"; });
  }

  template <typename Field>
  void Int(const Words& words, int32_t at_least, int32_t at_most, Field field) {
    Parsed(
        words, field,
        [at_least, at_most](absl::string_view text) { return ParseInt(text, at_least, at_most); },
        [](int32_t value) { return absl::StrCat(value); });
  }

  // A size that is derived when it is not given.
  template <typename Field>
  void AutoSize(const Words& words, Field field) {
    Parsed(
        words, field,
        [](absl::string_view text) -> absl::StatusOr<std::optional<uint64_t>> {
          if (text == kAuto) return std::optional<uint64_t>();
          return ParseSize(text);
        },
        [](const std::optional<uint64_t>& value) {
          return value.has_value() ? FormatSize(*value) : kAuto;
        });
  }

  // A number of tokens that is derived when it is not given.
  template <typename Field>
  void AutoTokens(const Words& words, bool endless, Field field) {
    Parsed(
        words, field,
        [endless](absl::string_view text) -> absl::StatusOr<std::optional<int32_t>> {
          if (text == kAuto) return std::optional<int32_t>();
          if (endless && text == kUnlimited) return ServerOptions::kEndlessWindow;
          return ParseInt(text, 0, ServerOptions::kEndlessWindow - 1);
        },
        [](const std::optional<int32_t>& value) -> std::string {
          if (!value.has_value()) return kAuto;
          return *value == ServerOptions::kEndlessWindow ? kUnlimited : absl::StrCat(*value);
        });
  }

  template <typename Field, typename Parse, typename Format>
  void Parsed(const Words& words, Field field, Parse parse, Format format) {
    Add(
        words,
        [field, parse](absl::string_view text, ServerOptions* options) -> absl::Status {
          STRATA_ASSIGN_OR_RETURN(field(*options), parse(text));
          return absl::OkStatus();
        },
        [field, format](const ServerOptions& options) { return format(Get(field, options)); });
  }

 private:
  template <typename Field>
  static auto Get(Field field, ServerOptions options) {
    return std::move(field(options));
  }
  void Add(const Words& words, std::function<absl::Status(absl::string_view, ServerOptions*)> set,
           std::function<std::string(const ServerOptions&)> get) {
    specs_.push_back({words.name, group_, words.value, words.help, std::move(set), std::move(get)});
  }

  std::string group_;
  std::vector<OptionSpec> specs_;
};

void AddModel(Builder* table) {
  table->Group("Model");
  table->Text(
      {"model", "FILE", "The model: a GGUF file. Required."},
      [](ServerOptions & o) -> auto& { return o.model.path; });
  table->Text(
      {"model-name", "NAME", "What clients call it. Empty: the file's name without .gguf."},
      [](ServerOptions & o) -> auto& { return o.model.name; });
  table->OneOf(
      {"basis", "NAME",
       "How K and V are turned around the cache: calibrated (measured once a model, then "
       "kept), vrot (V alone is rotated) or plain (neither; for comparisons)."},
      {"calibrated", "vrot", "plain"}, [](ServerOptions & o) -> auto& { return o.model.basis; });
  table->Text(
      {"basis-cache", "DIR",
       "Where the measured basis is kept. Empty: beside the model, else the user's cache."},
      [](ServerOptions & o) -> auto& { return o.model.basis_cache; });
}

void AddNetwork(Builder* table) {
  table->Group("Network");
  table->Text(
      {"listen", "HOST:PORT",
       "Where gRPC is served. Port 0 takes any free port; see --address-file."},
      [](ServerOptions & o) -> auto& { return o.listen.address; });
  table->Text(
      {"metrics-listen", "HOST:PORT",
       "Where /metrics, /healthz and /readyz are served over HTTP; none: nowhere."},
      [](ServerOptions & o) -> auto& { return o.listen.metrics; });
  table->Text(
      {"health-listen", "HOST:PORT",
       "Where grpc.health.v1 alone is served, in plain text and to everyone, for probes that know "
       "neither TLS nor tokens; none: only where gRPC is."},
      [](ServerOptions & o) -> auto& { return o.listen.health; });
  table->Text(
      {"address-file", "FILE",
       "Gets the gRPC, the HTTP and the health address, a line each, once they listen; no lines "
       "for the last ones that are none. Removed at exit."},
      [](ServerOptions & o) -> auto& { return o.listen.address_file; });
  table->Parsed(
      {"drain-timeout", "TIME", "How long running requests may go on after SIGTERM."},
      [](ServerOptions & o) -> auto& { return o.listen.drain_timeout; }, ParseDuration,
      FormatDuration);
}

void AddSecurity(Builder* table) {
  table->Group("Security");
  table->Text(
      {"tls-cert", "FILE",
       "Serve gRPC over TLS with this certificate and those that lead to its root; PEM. This and "
       "the files below are read again when they change."},
      [](ServerOptions & o) -> auto& { return o.security.tls_cert; });
  table->Text(
      {"tls-key", "FILE", "The certificate's private key; PEM."},
      [](ServerOptions & o) -> auto& { return o.security.tls_key; });
  table->Text(
      {"tls-client-ca", "FILE",
       "Take only clients with a certificate that one of these signed; PEM."},
      [](ServerOptions & o) -> auto& { return o.security.tls_client_ca; });
  table->Text(
      {"token-file", "FILE",
       "Take only calls with the header 'authorization: Bearer TOKEN' and a token of this file, "
       "which has one a line. Health is for everyone."},
      [](ServerOptions & o) -> auto& { return o.security.token_file; });
  table->Text(
      {"cache-token-file", "FILE",
       "The tokens for CacheService, which those of --token-file then do not open."},
      [](ServerOptions & o) -> auto& { return o.security.cache_token_file; });
  table->Switch(
      {"plaintext-tokens", "",
       "Allow tokens without TLS on an address that others can reach, where something else "
       "encrypts the way."},
      [](ServerOptions & o) -> auto& { return o.security.plaintext_tokens; });
}

void AddConnections(Builder* table) {
  table->Group("Connections");
  table->Parsed(
      {"max-message-bytes", "SIZE", "Of one message received; larger ones are refused."},
      [](ServerOptions & o) -> auto& { return o.limits.max_message_bytes; }, ParseSize, FormatSize);
  table->Parsed(
      {"max-metadata-bytes", "SIZE", "Of the header fields of one call."},
      [](ServerOptions & o) -> auto& { return o.limits.max_metadata_bytes; }, ParseSize,
      FormatSize);
  table->Int(
      {"max-connections", "N",
       "Connections and other open files of this process; connections above it are closed at "
       "once."},
      64, 1 << 20, [](ServerOptions & o) -> auto& { return o.limits.max_connections; });
  table->Int(
      {"max-streams", "N", "Calls of one connection at once; further ones wait in the client."}, 1,
      1 << 20, [](ServerOptions & o) -> auto& { return o.limits.max_streams; });
  table->Parsed(
      {"connection-age", "TIME",
       "After this long a client is asked to connect again, which spreads clients over replicas. "
       "0: never."},
      [](ServerOptions & o) -> auto& { return o.limits.connection_age; }, ParseDuration,
      FormatDuration);
  table->Parsed(
      {"connection-grace", "TIME", "What calls of such a connection get to end."},
      [](ServerOptions & o) -> auto& { return o.limits.connection_grace; }, ParseDuration,
      FormatDuration);
}

void AddDevice(Builder* table) {
  table->Group("Device");
  table->Parsed(
      {"device", "NAME",
       "What computes: cpu, cuda or cuda:N (the N-th NVIDIA GPU), or auto: a GPU where one can be "
       "used, else the CPU."},
      [](ServerOptions & o) -> auto& { return o.device.device; }, ParseDevice, FormatDevice);
  table->Int(
      {"threads", "N", "CPU threads that compute. 0: one a CPU this process may use."}, 0, 1024,
      [](ServerOptions & o) -> auto& { return o.device.threads; });
  table->OneOf(
      {"isa", "NAME", "Instructions to use: auto, scalar, avx2 or avx512."},
      {"auto", "scalar", "avx2", "avx512"},
      [](ServerOptions & o) -> auto& { return o.device.isa; });
  table->OneOf(
      {"warm-attention", "NAME",
       "With a GPU, what attends to warm and cold pages, which lie in the host's memory: device "
       "(the GPU, over the link), host (the CPU where they lie) or auto: the faster one, measured "
       "at start-up."},
      {"auto", "device", "host"},
      [](ServerOptions & o) -> auto& { return o.device.warm_attention; });
  table->AutoSize(
      {"gather-bytes", "SIZE",
       "GPU memory in which such pages are gathered a layer ahead of the GPU's attention to them; "
       "what does not fit is read in place, again for every few queries. 0: all is. auto: 128MiB."},
      [](ServerOptions & o) -> auto& { return o.device.gather_bytes; });
}

void AddTiers(Builder* table) {
  table->Group("Cache tiers");
  table->AutoSize(
      {"hot-bytes", "SIZE",
       "Memory of the hot tier (F16 pages), a hard cap. auto: a quarter of the "
       "available memory, at most what all sequences can need."},
      [](ServerOptions & o) -> auto& { return o.cache.hot_bytes; });
  table->AutoSize(
      {"warm-bytes", "SIZE",
       "Memory of the warm tier (4-bit pages by default), a hard cap. auto: a quarter "
       "of the available memory, at most what all sequences can need."},
      [](ServerOptions & o) -> auto& { return o.cache.warm_bytes; });
  table->AutoSize(
      {"cold-bytes", "SIZE",
       "Disk space of the cold tier (2-bit pages by default), a hard cap. auto: a "
       "quarter of the free disk, at most what all sequences can need; 0 without "
       "--cold-path."},
      [](ServerOptions & o) -> auto& { return o.cache.cold_bytes; });
  table->AutoSize(
      {"staging-bytes", "SIZE",
       "Memory for cold pages on their way to attention. auto: what the longest "
       "sequence needs."},
      [](ServerOptions & o) -> auto& { return o.cache.staging_bytes; });
  table->Text(
      {"cold-path", "FILE", "The file of the cold tier. Empty: no cold tier."},
      [](ServerOptions & o) -> auto& { return o.cache.cold_path; });
}

void AddFormats(Builder* table) {
  table->Group("Formats");
  table->Parsed(
      {"warm-format", "FORMAT", "Of warm pages: f16, i4 or i2, or K and V apart as in k4v2."},
      [](ServerOptions & o) -> auto& { return o.cache.warm_format; }, ParseFormatName, FormatName);
  table->Parsed(
      {"cold-format", "FORMAT", "Of cold pages. Must be the warm format with bits dropped."},
      [](ServerOptions & o) -> auto& { return o.cache.cold_format; }, ParseFormatName, FormatName);
  table->Int(
      {"cold-k-layers", "N",
       "Layers whose K stays at its warm format when cold: those whose attention needs it most, as "
       "measured when the model was first loaded."},
      0, 512, [](ServerOptions & o) -> auto& { return o.cache.cold_k_layers; });
  table->Parsed(
      {"cold-layers", "LIST",
       "Cold formats of single layers, as in 0-1:i4,2-27:i2; over --cold-format and "
       "--cold-k-layers."},
      [](ServerOptions & o) -> auto& { return o.cache.cold_layers; }, ParseColdLayers,
      FormatColdLayers);
}

void AddWindows(Builder* table) {
  table->Group("Windows");
  table->AutoTokens(
      {"sink-tokens", "TOKENS",
       "First tokens of a sequence that always stay hot. A multiple of 64, at least "
       "64. auto: 64."},
      false, [](ServerOptions & o) -> auto& { return o.cache.sink_tokens; });
  table->AutoTokens(
      {"hot-window", "TOKENS",
       "Latest tokens that are read hot, unless the request says otherwise. A "
       "multiple of 64, at least --piece-tokens, or unlimited. auto: what --hot-bytes "
       "buys for --max-sequences sequences of --max-context tokens."},
      true, [](ServerOptions & o) -> auto& { return o.cache.hot_window; });
  table->AutoTokens(
      {"warm-window", "TOKENS",
       "Tokens before those that are read warm; the rest is read cold. A multiple of "
       "64, or unlimited. auto: what --warm-bytes buys."},
      true, [](ServerOptions & o) -> auto& { return o.cache.warm_window; });
  table->Int(
      {"piece-tokens", "TOKENS",
       "Tokens of a prompt computed at a time; precision changes only between pieces. A "
       "multiple of 64."},
      64, 1 << 20, [](ServerOptions & o) -> auto& { return o.cache.piece_tokens; });
}

void AddLimits(Builder* table) {
  table->Group("Limits");
  table->Int(
      {"max-sequences", "N", "Requests running at once."}, 1, 65536,
      [](ServerOptions & o) -> auto& { return o.limits.max_sequences; });
  table->Int(
      {"max-context", "TOKENS", "Prompt and output of one request. 0: the model's limit."}, 0,
      kMost, [](ServerOptions & o) -> auto& { return o.limits.max_context; });
  table->Int(
      {"queue-max", "N", "Requests waiting; more are refused."}, 0, 1 << 20,
      [](ServerOptions & o) -> auto& { return o.limits.queue_max; });
  table->Int(
      {"max-batch-tokens", "TOKENS",
       "Tokens computed in one step; at least --piece-tokens + --max-sequences - 1."},
      1, 1 << 20, [](ServerOptions & o) -> auto& { return o.limits.max_batch_tokens; });
  table->Int(
      {"default-max-tokens", "TOKENS", "Output of a request that does not say how much."}, 1, kMost,
      [](ServerOptions & o) -> auto& { return o.limits.default_max_tokens; });
}

void AddDisk(Builder* table) {
  table->Group("Disk");
  table->OneOf(
      {"io-engine", "NAME", "How the cold tier reads and writes: auto, io_uring, threads."},
      {"auto", "io_uring", "threads"},
      [](ServerOptions & o) -> auto& { return o.cache.io_engine; });
  table->Int(
      {"io-depth", "N", "Reads and writes in flight."}, 1, 4096,
      [](ServerOptions & o) -> auto& { return o.cache.io_depth; });
  table->Parsed(
      {"disk-write-rate", "SIZE", "Bytes a second written to disk at most. 0: no limit."},
      [](ServerOptions & o) -> auto& { return o.cache.disk_write_rate; }, ParseSize, FormatSize);
}

void AddLog(Builder* table) {
  table->Group("Log");
  table->OneOf(
      {"log-level", "LEVEL", "What is logged: debug, info, warn, error or off."},
      {"debug", "info", "warn", "error", "off"},
      [](ServerOptions & o) -> auto& { return o.log.level; });
  table->OneOf(
      {"log-format", "FORMAT", "text, or json: one object a line."}, {"text", "json"},
      [](ServerOptions & o) -> auto& { return o.log.format; });
}

std::vector<OptionSpec> BuildTable() {
  Builder table;
  AddModel(&table);
  AddNetwork(&table);
  AddSecurity(&table);
  AddConnections(&table);
  AddDevice(&table);
  AddTiers(&table);
  AddFormats(&table);
  AddWindows(&table);
  AddLimits(&table);
  AddDisk(&table);
  AddLog(&table);
  return table.Take();
}

}  // namespace

std::string OptionSpec::EnvironmentName() const {
  return absl::StrCat("STRATA_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
}

const std::vector<OptionSpec>& OptionTable() {
  static const auto& table = *new std::vector<OptionSpec>(BuildTable());
  return table;
}

const OptionSpec* FindOption(absl::string_view name) {
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

}  // namespace strata
