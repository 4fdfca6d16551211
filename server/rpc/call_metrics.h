#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "grpcpp/support/server_interceptor.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace strata::rpc {

// grpc_server_{started,handled}_total and grpc_server_handling_seconds of every method this server
// has, at 0 from the start. Counts in an interceptor, so no handler can forget. Any thread;
// outlives the server.
class CallMetrics {
 public:
  CallMetrics();
  ~CallMetrics();

  // For ServerBuilder; refers to this.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptorFactory();

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

 private:
  struct Method;
  class Interceptor;
  class Factory;

  void AddService(const std::string& full_name);
  void AddMethod(const std::string& service, const std::string& method, const std::string& type);

  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Counter>& started_;
  prometheus::Family<prometheus::Counter>& handled_;
  prometheus::Family<prometheus::Histogram>& seconds_;
  absl::flat_hash_map<std::string, std::unique_ptr<Method>> methods_;  // by "/service/method"
};

}  // namespace strata::rpc
