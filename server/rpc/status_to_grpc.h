#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace strata::rpc {

// The one place where our error codes become gRPC's. Payloads of `status` (server/rpc/errors.h)
// become a google.rpc.Status in the grpc-status-details-bin trailer.
grpc::StatusCode ToGrpcCode(absl::StatusCode code);
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace strata::rpc
