// strata-bench: the project's speed claims, each checked for correctness before it is timed.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/suites.h"

namespace strata::bench {
namespace {

std::string Cell(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return std::to_string(value.get<int64_t>());
  char text[32];
  const double number = value.get<double>();
  std::snprintf(text, sizeof(text),
                number >= 1e7   ? "%.3g"
                : number >= 100 ? "%.1f"
                                : "%.3f",
                number);
  return text;
}

// A figure a line, then the rows as a table.
void PrintTable(const nlohmann::json& result) {
  for (const auto& [key, value] : result.items()) {
    if (key != "rows") std::printf("%-28s %s\n", key.c_str(), Cell(value).c_str());
  }
  if (result["rows"].empty()) return;
  std::printf("\n");
  for (const auto& [key, unused] : result["rows"][0].items()) std::printf("%-24s ", key.c_str());
  std::printf("\n");
  for (const nlohmann::json& row : result["rows"]) {
    for (const auto& [unused, value] : row.items()) std::printf("%-24s ", Cell(value).c_str());
    std::printf("\n");
  }
}

int Main(int argc, char** argv) {
  BenchOptions options;
  bool json = false;
  bool stream = false;
  CLI::App app("strata-bench: speed, checked for correctness before it is timed");
  app.require_subcommand(1);
  const std::pair<const char*, const char*> commands[] = {
      {"decode", "tokens a second at given depths, next to the memory bound"},
      {"prefill", "tokens a second of prompts of given lengths"},
      {"attend", "attention alone over F16, I4 and I2 pages"},
      {"codec", "encoding of pages"},
      {"cold-io", "writing and reading records of the cold store"}};
  for (const auto& [name, help] : commands) {
    CLI::App* command = app.add_subcommand(name, help);
    const std::string which = name;
    command->add_flag("--json", json, "one JSON object on stdout");
    command->add_option("--threads", options.threads, "threads; 0: one a CPU")
        ->check(CLI::Range(0, 1024))
        ->capture_default_str();
    command->add_option("--runs", options.runs, "timed repetitions")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    if (which == "decode" || which == "prefill") {
      command->add_option("--model", options.model, "GGUF model file")->required();
      command->add_option("--text", options.text, "text file to run over")->required();
      command
          ->add_option("--ladder", options.ladders,
                       "f16, i4, i2, k4v2, ladder:SINK,RECENT,WARM (tokens); may be repeated")
          ->capture_default_str();
      command->add_option("--depth", options.depths, "tokens in the cache; may be repeated")
          ->check(CLI::Range(0, 1 << 24))
          ->capture_default_str();
      command->add_option("--decode-tokens", options.decode_tokens, "tokens of a timed run")
          ->check(CLI::Range(1, 100000))
          ->capture_default_str();
      command->add_flag("--stream", stream,
                        "read cold pages from disk every step instead of keeping them staged");
    }
    if (which == "attend" || which == "codec") {
      command->add_option("--query-heads", options.query_heads, "")->capture_default_str();
      command->add_option("--kv-heads", options.kv_heads, "")
          ->check(CLI::Range(1, 128))
          ->capture_default_str();
      command->add_option("--head-dim", options.head_dim, "a multiple of 16")
          ->check(CLI::Range(16, 256))
          ->capture_default_str();
    }
    if (which == "attend") {
      command->add_option("--tokens", options.attend_tokens, "tokens attended, one layer")
          ->check(CLI::Range(int64_t{4096}, int64_t{1} << 28))
          ->capture_default_str();
    }
    if (which == "cold-io") {
      command->add_option("--bytes", options.cold_bytes, "bytes written and read")
          ->check(CLI::Range(int64_t{1} << 20, int64_t{1} << 40))
          ->capture_default_str();
      command->add_option("--io-engine", options.io_engine, "auto, io_uring or threads")
          ->capture_default_str();
    }
    if (which != "attend" && which != "codec") {
      command->add_option("--cold-dir", options.cold_dir, "directory for the cold store's file")
          ->capture_default_str();
    }
  }
  CLI11_PARSE(app, argc, argv);
  options.stage_everything = !stream;
  const std::string command = app.get_subcommands().front()->get_name();
  const auto result = command == "decode"    ? RunDecode(options)
                      : command == "prefill" ? RunPrefill(options)
                      : command == "attend"  ? RunAttend(options)
                      : command == "codec"   ? RunCodec(options)
                                             : RunColdIo(options);
  if (!result.ok()) {
    std::fprintf(stderr, "strata-bench %s: %s\n", command.c_str(),
                 std::string(result.status().message()).c_str());
    return 1;
  }
  if (json) {
    std::printf("%s\n", result->dump().c_str());
  } else {
    PrintTable(*result);
  }
  return 0;
}

}  // namespace
}  // namespace strata::bench

int main(int argc, char** argv) { return strata::bench::Main(argc, argv); }
