#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace strata::rpc {

// `bytes` with U+FFFD for each byte that belongs to no well-formed UTF-8 character: what a proto
// string may hold.
std::string ToValidUtf8(absl::string_view bytes);

}  // namespace strata::rpc
