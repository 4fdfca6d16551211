#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/config/server_options.h"

namespace strata {

// One option: its name is the flag's (--name), the file's key (name:) and, in upper case with
// underscores after STRATA_, the environment variable's.
struct OptionSpec {
  std::string name;
  std::string group;
  std::string value;  // what stands for it in the help: "SIZE"; empty: a switch
  std::string help;   // with its unit
  std::function<absl::Status(absl::string_view text, ServerOptions* options)> set;
  std::function<std::string(const ServerOptions& options)> get;

  bool is_switch() const { return value.empty(); }
  std::string EnvironmentName() const;
};

// All of them, group by group, in the order of the help. The one list behind flags, file,
// environment, help and the printed configuration.
const std::vector<OptionSpec>& OptionTable();
const OptionSpec* FindOption(absl::string_view name);  // null: there is none

}  // namespace strata
