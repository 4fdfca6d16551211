#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/server_options.h"

namespace strata {

// What the command line asks for.
enum class Command { kServe, kHelp, kVersion, kPrintConfig };

struct LoadedOptions {
  Command command = Command::kServe;
  ServerOptions options;
  std::map<std::string, std::string> sources;  // where each option that was set came from, by name
};

// The process's own name and values, "NAME=value" each.
using Environment = std::vector<std::string>;
Environment ProcessEnvironment();

// Reads flags, then the environment, then the file of --config or STRATA_CONFIG, then defaults: the
// first that has an option wins. InvalidArgument, naming the flag, variable or key, for one that
// does not exist, is given twice, or has a value that does not fit; for kServe and kPrintConfig the
// options are validated too.
absl::StatusOr<LoadedOptions> LoadOptions(const std::vector<std::string>& arguments,
                                          const Environment& environment);

// The options as a file for --config, with a comment where each came from.
std::string PrintOptions(const LoadedOptions& loaded);

// The manual page.
std::string HelpPage();

}  // namespace strata
