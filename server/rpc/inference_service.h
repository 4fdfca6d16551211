#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/impl/service_type.h"
#include "server/rpc/generate_call.h"

namespace strata::rpc {

// What GetServerInfo says that never changes.
struct ServerFacts {
  std::string version;
  std::string git_commit;
  std::string backend;
  std::vector<std::string> cpu_features;
  std::vector<std::string> devices;
};

// strata.v1.InferenceService on gRPC's callback API. `environment` and what it points to outlive
// it.
std::unique_ptr<grpc::Service> MakeInferenceService(const CallEnvironment& environment,
                                                    const ServerFacts& facts);

}  // namespace strata::rpc
