#include "tools/cli/plan.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/config/format_name.h"
#include "server/config/load_options.h"
#include "server/config/option_values.h"

namespace strata::cli {
namespace {

constexpr double kMiB = 1 << 20;
constexpr Tier kTiers[] = {Tier::kHot, Tier::kWarm, Tier::kCold};
constexpr const char* kTierNames[] = {"hot", "warm", "cold"};

size_t BudgetOf(const TierOptions& tiers, Tier tier) {
  return tier == Tier::kHot    ? tiers.hot_bytes
         : tier == Tier::kWarm ? tiers.warm_bytes
                               : tiers.cold_bytes;
}

bool Unlimited(int32_t blocks) { return blocks >= PositionalPolicy::kUnlimited; }

std::string Windows(const PositionalPolicy& windows) {
  if (Unlimited(windows.hot_blocks)) return "everything is read hot";
  const auto tokens = [](int32_t blocks) { return int64_t{blocks} * kBlockTokens; };
  const std::string hot =
      absl::StrCat("the first ", tokens(windows.sink_blocks), " and the latest ",
                   tokens(windows.hot_blocks), " tokens are read hot, ");
  if (Unlimited(windows.warm_blocks)) return absl::StrCat(hot, "the rest warm");
  return absl::StrCat(hot, tokens(windows.warm_blocks), " before those warm, the rest cold");
}

nlohmann::json WindowJson(int32_t blocks) {
  if (Unlimited(blocks)) return "unlimited";
  return int64_t{blocks} * kBlockTokens;
}

std::string MiB(uint64_t bytes) { return absl::StrFormat("%10.1f MiB", bytes / kMiB); }

void AppendParts(const std::vector<std::pair<const char*, uint64_t>>& parts, std::string* report) {
  for (const auto& [name, bytes] : parts) {
    absl::StrAppendFormat(report, "  %-10s %s\n", name, MiB(bytes));
  }
}

// "--name=VALUE" of `arguments` taken out of them; empty: not there.
std::string Take(const std::string& name, std::vector<std::string>* arguments) {
  const std::string prefix = absl::StrCat("--", name, "=");
  for (auto each = arguments->begin(); each != arguments->end(); ++each) {
    if (!absl::StartsWith(*each, prefix)) continue;
    const std::string value = each->substr(prefix.size());
    arguments->erase(each);
    return value;
  }
  return "";
}

bool TakeSwitch(const std::string& name, std::vector<std::string>* arguments) {
  const auto found = std::find(arguments->begin(), arguments->end(), name);
  if (found == arguments->end()) return false;
  arguments->erase(found);
  return true;
}

absl::Status SetSize(const std::string& name, const std::string& text, uint64_t* bytes) {
  if (text.empty()) return absl::OkStatus();
  const auto size = ParseSize(text);
  if (!size.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", size.status().message()));
  }
  *bytes = *size;
  return absl::OkStatus();
}

}  // namespace

std::string PlanHelp() {
  return R"(Plans a server: what its tiers hold, which windows they buy, what memory it takes.

strata plan --model=FILE.gguf [--memory=SIZE] [--disk=SIZE] [--json] [SERVER OPTION]...

Takes every option of strata-server (strata-server --help), as flags, in the environment or in the
file of --config, and derives what the server would from them. Of the model it reads the header:
the first megabytes of a file, extended to its length (truncate --size), will do. For a GPU, give
--hot-bytes: this program does not ask the device.

  --memory=SIZE  Memory of the machine or container; default: what is available here
  --disk=SIZE    Free disk for the cold tier; default: what is free at --cold-path
  --json         One JSON object

  strata plan --model=m.gguf --memory=64GiB --max-sequences=32 --max-context=32768 \
      --cold-path=/nvme/cold --disk=1TiB
)";
}

absl::StatusOr<PlanRequest> ParsePlan(const std::vector<std::string>& arguments,
                                      const std::vector<std::string>& environment) {
  PlanRequest request;
  std::vector<std::string> rest = arguments;
  request.help = TakeSwitch("--help", &rest) || TakeSwitch("-h", &rest);
  if (request.help) return request;
  request.json = TakeSwitch("--json", &rest);
  const std::string memory = Take("memory", &rest);
  const std::string disk = Take("disk", &rest);
  STRATA_ASSIGN_OR_RETURN(const LoadedOptions loaded, LoadOptions(rest, environment));
  if (loaded.command != strata::Command::kServe) {
    return absl::InvalidArgumentError("--print-config and --version are strata-server's");
  }
  request.options = loaded.options;
  request.machine = ReadMachine(request.options.cache.cold_path);
  STRATA_RETURN_IF_ERROR(SetSize("memory", memory, &request.machine.memory_available));
  STRATA_RETURN_IF_ERROR(SetSize("disk", disk, &request.machine.disk_available));
  return request;
}

absl::StatusOr<MemoryPlan> MakePlan(const PlanRequest& request) {
  STRATA_ASSIGN_OR_RETURN(const ModelSize model, MeasureModel(request.options.model.path));
  return MakeMemoryPlan(request.options, model, request.machine);
}

std::string PlanReport(const MemoryPlan& plan, const ServerOptions& options) {
  const TierOptions& tiers = plan.tiers;
  std::string report = absl::StrFormat("%d sequences of at most %d tokens\n\n", tiers.max_sequences,
                                       tiers.max_context);
  absl::StrAppend(&report, "tier  format          budget   blocks  tokens a sequence\n");
  for (const Tier tier : kTiers) {
    const size_t i = IndexOf(tier);
    absl::StrAppendFormat(&report, "%-5s %-6s %s %8d %18d\n", kTierNames[i],
                          TierFormatName(tiers, tier), MiB(BudgetOf(tiers, tier)),
                          plan.layout.slots[i], plan.TokensPerSequence(tier));
  }
  absl::StrAppend(&report, "\nwindows: ", Windows(plan.windows), "\n\nmemory\n");
  using Part = std::pair<const char*, uint64_t>;
  const std::vector<Part> computing = {
      {"weights", plan.weight_bytes}, {"hot tier", tiers.hot_bytes}, {"step", plan.step_bytes}};
  std::vector<Part> host = {{"warm tier", tiers.warm_bytes},
                            {"staging", tiers.staging_bytes},
                            {"messages", plan.message_bytes},
                            {"process", plan.process_bytes},
                            {"together", plan.MemoryBytes()}};
  if (!plan.on_gpu) host.insert(host.begin(), computing.begin(), computing.end());
  AppendParts(host, &report);
  if (plan.on_gpu) {
    absl::StrAppend(&report, "memory of the GPU\n");
    AppendParts(computing, &report);
    AppendParts({{"gathering", plan.gather_bytes}, {"together", plan.DeviceBytes()}}, &report);
  }
  absl::StrAppendFormat(&report,
                        "\nKubernetes\n  resources:\n    requests: {memory: %dMi}\n"
                        "    limits: {memory: %dMi}\n",
                        plan.MemoryLimit() >> 20, plan.MemoryLimit() >> 20);
  if (tiers.cold_bytes > 0) {
    absl::StrAppendFormat(&report, "  storage of the volume at %s: at least %dMi\n",
                          options.cache.cold_path, (tiers.cold_bytes >> 20) + 1);
  }
  return report;
}

std::string PlanJson(const MemoryPlan& plan) {
  nlohmann::json json;
  const TierOptions& tiers = plan.tiers;
  for (const Tier tier : kTiers) {
    const size_t i = IndexOf(tier);
    json["tiers"][kTierNames[i]] = {{"budget_bytes", BudgetOf(tiers, tier)},
                                    {"format", TierFormatName(tiers, tier)},
                                    {"slots", plan.layout.slots[i]},
                                    {"slot_bytes", plan.layout.SlotBytes(tier)},
                                    {"tokens_per_sequence", plan.TokensPerSequence(tier)}};
  }
  json["max_sequences"] = tiers.max_sequences;
  json["max_context"] = tiers.max_context;
  json["windows"] = {{"sink", WindowJson(plan.windows.sink_blocks)},
                     {"hot", WindowJson(plan.windows.hot_blocks)},
                     {"warm", WindowJson(plan.windows.warm_blocks)}};
  json["memory"] = {{"weight_bytes", plan.weight_bytes},   {"staging_bytes", tiers.staging_bytes},
                    {"step_bytes", plan.step_bytes},       {"message_bytes", plan.message_bytes},
                    {"process_bytes", plan.process_bytes}, {"total_bytes", plan.MemoryBytes()},
                    {"gather_bytes", plan.gather_bytes},   {"device_bytes", plan.DeviceBytes()},
                    {"limit_bytes", plan.MemoryLimit()}};
  return json.dump() + "\n";
}

}  // namespace strata::cli
