#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/config/server_options.h"

namespace strata {

// What computes, chosen by the options. `auto` takes a GPU where one can be used, else the CPU, and
// logs a line that says why; `cuda` fails with one sentence for the operator.
absl::StatusOr<Backend> OpenBackend(const DeviceSection& options);

// For GetServerInfo: "cpu", or the GPU's index and name.
std::vector<std::string> DevicesOf(const Backend& backend);

}  // namespace strata
