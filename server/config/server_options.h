#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tiering/tier_options.h"

namespace strata {

struct ModelSection {
  std::string path;                  // GGUF file
  std::string name;                  // what clients call it; empty: the file's name without .gguf
  std::string basis = "calibrated";  // of K and V: calibrated, vrot or plain
  std::string basis_cache;           // directory; empty: beside the model
};

struct ListenSection {
  std::string address = "127.0.0.1:50051";  // gRPC; port 0: any free one
  std::string metrics = "127.0.0.1:9464";   // HTTP; "none": no metrics
  std::string health = "none";              // gRPC health in plain text; "none": no such port
  std::string address_file;                 // gets the bound addresses; empty: none
  std::chrono::nanoseconds drain_timeout = std::chrono::seconds(30);
};

// Of the gRPC port. Files are read again when they change.
struct SecuritySection {
  std::string tls_cert;  // PEM; empty: plain text
  std::string tls_key;
  std::string tls_client_ca;      // who signs client certificates; empty: clients need none
  std::string token_file;         // bearer tokens, one a line; empty: none are needed
  std::string cache_token_file;   // of CacheService; empty: as for the rest
  bool plaintext_tokens = false;  // although anyone on the way can read them
};

// auto, cpu, cuda or cuda:N.
struct DeviceChoice {
  enum class Kind : uint8_t { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  int32_t cuda_index = 0;
};
std::string FormatDevice(const DeviceChoice& device);

struct DeviceSection {
  DeviceChoice device;
  int32_t threads = 0;                   // of the CPU; 0: one a usable CPU
  std::string isa = "auto";              // auto, scalar, avx2 or avx512
  std::string warm_attention = "auto";   // of a GPU: auto, device or host
  std::optional<uint64_t> gather_bytes;  // of a GPU that attends to host pages; absent: the default
};

// Layers [first, last] of the cold tier, stored alike.
struct ColdLayers {
  int32_t first = 0;
  int32_t last = 0;
  TensorKinds kinds;
  friend bool operator==(const ColdLayers&, const ColdLayers&) = default;
};

// Absent: derived from the machine's memory (derive_options.h).
struct CacheSection {
  std::optional<uint64_t> hot_bytes;
  std::optional<uint64_t> warm_bytes;
  std::optional<uint64_t> cold_bytes;
  std::optional<uint64_t> staging_bytes;
  std::string cold_path;  // file of the cold tier; empty: none

  TensorKinds warm_format{KvKind::kI4, KvKind::kI4};
  TensorKinds cold_format{KvKind::kI2, KvKind::kI2};
  int32_t cold_k_layers = 8;            // whose K keeps its warm format
  std::vector<ColdLayers> cold_layers;  // over cold_format and cold_k_layers

  std::optional<int32_t> sink_tokens;  // windows, in tokens
  std::optional<int32_t> hot_window;
  std::optional<int32_t> warm_window;
  int32_t piece_tokens = 256;

  std::string io_engine = "auto";  // auto, io_uring or threads
  int32_t io_depth = 64;           // reads and writes in flight
  uint64_t disk_write_rate = 0;    // bytes a second; 0: unlimited
};

struct LimitsSection {
  int32_t max_sequences = 16;      // running at once
  int32_t max_context = 0;         // tokens a sequence; 0: the model's
  int32_t queue_max = 256;         // waiting
  int32_t max_batch_tokens = 320;  // rows of one step
  int32_t default_max_tokens = 256;

  uint64_t max_message_bytes = uint64_t{64} << 20;  // received
  uint64_t max_metadata_bytes = uint64_t{16} << 10;
  int32_t max_connections = 4096;
  int32_t max_streams = 1024;  // calls of one connection at once
  std::chrono::nanoseconds connection_age = std::chrono::minutes(5);  // 0: unlimited
  std::chrono::nanoseconds connection_grace = std::chrono::hours(1);
};

struct LogSection {
  std::string level = "info";   // debug, info, warn, error or off
  std::string format = "text";  // text or json
};

// Whether HOST:PORT is this machine's alone, so that nobody on a network can read along.
bool IsLoopback(absl::string_view address);

// Everything an operator can set. Where each value may come from: load_options.h.
struct ServerOptions {
  static constexpr int32_t kEndlessWindow = PositionalPolicy::kUnlimited;

  ModelSection model;
  ListenSection listen;
  SecuritySection security;
  DeviceSection device;
  CacheSection cache;
  LimitsSection limits;
  LogSection log;

  // What the options say about each other; InvalidArgument naming option, value and limit.
  absl::Status Validate() const;
};

}  // namespace strata
