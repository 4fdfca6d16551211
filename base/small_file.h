#pragma once

#include <cstddef>
#include <istream>
#include <string>

#include "absl/status/statusor.h"

namespace strata {

// All that a stream still has. InvalidArgument naming `name` where it cannot be read or has more
// than `bytes_max` bytes.
absl::StatusOr<std::string> ReadAtMost(std::istream* in, const std::string& name, size_t bytes_max);

// The same of a file that should be small: a configuration, a certificate, a list of tokens.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max);

}  // namespace strata
