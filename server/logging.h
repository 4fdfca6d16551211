#pragma once

#include "server/config/server_options.h"

namespace strata {

// Points spdlog's default logger at stderr, as text or as one JSON object a line.
void SetUpLogging(const LogSection& options);

}  // namespace strata
