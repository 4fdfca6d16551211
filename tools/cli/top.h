#pragma once

#include "absl/status/status.h"
#include "tools/cli/cli_options.h"
#include "tools/cli/client.h"

namespace strata::cli {

// `strata top`: a full screen where standard output is a terminal, until q is typed; otherwise, and
// with --once or --json, reports one after the other. A server that goes away is waited for on the
// full screen, and an error elsewhere.
absl::Status Top(const CliOptions& options, Client* client);

}  // namespace strata::cli
