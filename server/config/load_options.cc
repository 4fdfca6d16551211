#include "server/config/load_options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/small_file.h"
#include "base/status_macros.h"
#include "server/config/option_table.h"
#include "yaml-cpp/yaml.h"

namespace strata {
namespace {

constexpr char kPrefix[] = "STRATA_";
constexpr char kConfigVariable[] = "STRATA_CONFIG";
// Variables of this prefix that others read.
constexpr const char* kForeignVariables[] = {"STRATA_FORCE_ISA", "STRATA_SERVER"};
constexpr char kTestVariables[] = "STRATA_TEST_";
constexpr size_t kConfigBytesMax = 1 << 20;

// The text one source gives an option, and how messages call that source.
struct Given {
  std::string text;
  std::string source;
};
using GivenOptions = std::map<std::string, Given>;  // by option name

struct CommandLine {
  Command command = Command::kServe;
  std::string config;
  GivenOptions given;
};

absl::StatusOr<CommandLine> ReadFlags(std::vector<std::string> arguments) {
  CommandLine line;
  std::map<std::string, std::string> texts;
  bool help = false;
  bool version = false;
  bool print_config = false;
  CLI::App app;
  app.set_help_flag();
  app.allow_windows_style_options(false);
  app.add_flag("-h,--help", help);
  app.add_flag("--version", version);
  app.add_flag("--print-config", print_config);
  app.add_option("--config", line.config);
  for (const OptionSpec& spec : OptionTable()) {
    const std::string flag = absl::StrCat("--", spec.name);
    if (spec.is_switch()) {
      app.add_flag(flag, texts[spec.name]);
    } else {
      app.add_option(flag, texts[spec.name]);
    }
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ExtrasError&) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", app.remaining().front(), "' is not a flag of this program"));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  for (const auto& [name, text] : texts) {
    const std::string flag = absl::StrCat("--", name);
    if (app.count(flag) > 0) line.given[name] = {text, absl::StrCat("flag ", flag)};
  }
  if (help) line.command = Command::kHelp;
  if (version) line.command = Command::kVersion;
  if (print_config) line.command = Command::kPrintConfig;
  return line;
}

bool IsForeign(absl::string_view variable) {
  return absl::StartsWith(variable, kTestVariables) ||
         std::find(std::begin(kForeignVariables), std::end(kForeignVariables), variable) !=
             std::end(kForeignVariables);
}

absl::StatusOr<GivenOptions> ReadEnvironment(const Environment& environment, std::string* config) {
  GivenOptions given;
  for (const std::string& entry : environment) {
    if (!absl::StartsWith(entry, kPrefix)) continue;
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const auto& [variable, text] = parts;
    if (IsForeign(variable)) continue;
    if (variable == kConfigVariable) {
      *config = text;
      continue;
    }
    const auto& table = OptionTable();
    const auto spec = std::find_if(table.begin(), table.end(), [&](const OptionSpec& candidate) {
      return candidate.EnvironmentName() == variable;
    });
    if (spec == table.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable ", variable, " is not one of this program's"));
    }
    given[spec->name] = {text, absl::StrCat("environment variable ", variable)};
  }
  return given;
}

absl::StatusOr<GivenOptions> ReadMapping(const YAML::Node& root, const std::string& path) {
  GivenOptions given;
  if (root.IsNull()) return given;
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a list of lines like 'hot-bytes: 2GiB'"));
  }
  for (const auto& item : root) {
    const auto key = item.first.as<std::string>();
    const std::string where = absl::StrCat(path, ":", item.first.Mark().line + 1);
    if (FindOption(key) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": '", key, "' is not an option of this program"));
    }
    if (given.contains(key)) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": '", key, "' is given twice"));
    }
    if (!item.second.IsScalar() && !item.second.IsNull()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": '", key, "' is not a single value"));
    }
    given[key] = {item.second.IsNull() ? "" : item.second.Scalar(), absl::StrCat(where, ": ", key)};
  }
  return given;
}

absl::StatusOr<GivenOptions> ReadFile(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kConfigBytesMax));
  try {
    return ReadMapping(YAML::Load(text), path);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

// Later sources must be applied first: the last one wins.
absl::Status Apply(const GivenOptions& given, LoadedOptions* loaded) {
  for (const auto& [name, value] : given) {
    const absl::Status status = FindOption(name)->set(value.text, &loaded->options);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(value.source, ": ", status.message()));
    }
    loaded->sources[name] = value.source;
  }
  return absl::OkStatus();
}

}  // namespace

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

absl::StatusOr<LoadedOptions> LoadOptions(const std::vector<std::string>& arguments,
                                          const Environment& environment) {
  LoadedOptions loaded;
  STRATA_ASSIGN_OR_RETURN(const CommandLine line, ReadFlags(arguments));
  loaded.command = line.command;
  if (line.command == Command::kHelp || line.command == Command::kVersion) return loaded;
  std::string config;
  STRATA_ASSIGN_OR_RETURN(const GivenOptions variables, ReadEnvironment(environment, &config));
  if (!line.config.empty()) config = line.config;
  if (!config.empty()) {
    STRATA_ASSIGN_OR_RETURN(const GivenOptions file, ReadFile(config));
    STRATA_RETURN_IF_ERROR(Apply(file, &loaded));
  }
  STRATA_RETURN_IF_ERROR(Apply(variables, &loaded));
  STRATA_RETURN_IF_ERROR(Apply(line.given, &loaded));
  STRATA_RETURN_IF_ERROR(loaded.options.Validate());
  return loaded;
}

std::string PrintOptions(const LoadedOptions& loaded) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const OptionSpec& spec : OptionTable()) {
    const std::string value = spec.get(loaded.options);
    out << YAML::Key << spec.name << YAML::Value;
    if (value.empty()) out << YAML::DoubleQuoted;
    out << value;
    const auto source = loaded.sources.find(spec.name);
    if (source != loaded.sources.end()) out << YAML::Comment(source->second);
  }
  out << YAML::EndMap;
  return absl::StrCat(out.c_str(), "\n");
}

}  // namespace strata
