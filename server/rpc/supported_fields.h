#pragma once

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace strata::rpc {

// Refuses, with UNIMPLEMENTED naming it, the first field of `request` that is set and not served,
// at any depth: unknown field numbers, fields that the table of served fields lacks, and values of
// served fields that are not supported (n = 2). So a field that is added to the proto is refused
// until somebody serves it and says so in the table.
absl::Status CheckSupported(const google::protobuf::Message& request);

}  // namespace strata::rpc
