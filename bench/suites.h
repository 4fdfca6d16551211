#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace strata::bench {

// What the commands of strata-bench share.
struct BenchOptions {
  std::string model;             // decode, prefill: a GGUF file
  std::string text;              // decode, prefill: a text file, long enough
  bool stage_everything = true;  // decode, prefill: keep staged cold pages in DRAM
  std::vector<std::string> ladders = {"f16", "ladder:64,512,1024"};
  std::vector<int32_t> depths = {0, 1024, 4096, 8000};
  std::string cold_dir = "/tmp";
  int threads = 0;
  int runs = 7;                // timed repetitions; the median is reported
  int32_t decode_tokens = 16;  // tokens of one timed decode run
  int32_t query_heads = 9, kv_heads = 3, head_dim = 64;  // attend, codec
  int64_t attend_tokens = 1 << 20;          // attend: tokens of one layer, beyond every cache
  int64_t cold_bytes = int64_t{512} << 20;  // cold-io
  std::string io_engine = "auto";
};

// Each suite checks its results against an oracle before it times anything, and returns figures
// with the machine's read bandwidth measured in the same run.
absl::StatusOr<nlohmann::json> RunAttend(const BenchOptions& options);
absl::StatusOr<nlohmann::json> RunCodec(const BenchOptions& options);
absl::StatusOr<nlohmann::json> RunDecode(const BenchOptions& options);
absl::StatusOr<nlohmann::json> RunPrefill(const BenchOptions& options);
absl::StatusOr<nlohmann::json> RunColdIo(const BenchOptions& options);

}  // namespace strata::bench
