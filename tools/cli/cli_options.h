#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "strata/v1/inference.pb.h"

namespace strata::cli {

enum class Command { kHelp, kGenerate, kTokenize, kStats, kTop, kInfo };

// What one command line asks for.
struct CliOptions {
  Command command = Command::kHelp;
  std::string help;  // for kHelp
  std::string server = "127.0.0.1:50051";
  bool json = false;
  bool quiet = false;                               // no progress, no summary
  std::optional<std::chrono::nanoseconds> timeout;  // of the call

  bool once = false;                                            // top: one report
  std::chrono::nanoseconds interval = std::chrono::seconds(1);  // top: between reports

  std::string input_file;        // the prompt or text comes from here; "-": standard input
  v1::GenerateRequest generate;  // all but such an input
  v1::TokenizeRequest tokenize;
};

// InvalidArgument, naming the argument, for what is wrong. `default_server` is STRATA_SERVER's
// value, or empty.
absl::StatusOr<CliOptions> ParseCommandLine(const std::vector<std::string>& arguments,
                                            const std::string& default_server);

}  // namespace strata::cli
