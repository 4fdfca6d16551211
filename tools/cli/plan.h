#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/memory_plan.h"

namespace strata::cli {

// What `strata plan` is asked for: a server's flags, and the machine to plan for.
struct PlanRequest {
  bool help = false;
  bool json = false;
  ServerOptions options;
  MachineFacts machine;  // this one, where --memory and --disk do not say otherwise
};

// `arguments` after "plan". InvalidArgument naming the argument.
absl::StatusOr<PlanRequest> ParsePlan(const std::vector<std::string>& arguments,
                                      const std::vector<std::string>& environment);
std::string PlanHelp();

// Reads the model's header and plans.
absl::StatusOr<MemoryPlan> MakePlan(const PlanRequest& request);

std::string PlanReport(const MemoryPlan& plan, const ServerOptions& options);
// One object, one line.
std::string PlanJson(const MemoryPlan& plan);

}  // namespace strata::cli
