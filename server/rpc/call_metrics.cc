#include "server/rpc/call_metrics.h"

#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/grpcpp.h"
#include "prometheus/labels.h"

namespace strata::rpc {
namespace {

using Hook = grpc::experimental::InterceptionHookPoints;

constexpr std::array<const char*, 17> kCodeNames = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

const std::vector<double> kSecondsBounds = {.001, .0025, .005, .01, .025, .05, .1, .25,
                                            .5,   1,     2.5,  5,   10,   30,  60, 300};

const char* TypeName(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) return method.server_streaming() ? "bidi_stream" : "client_stream";
  return method.server_streaming() ? "server_stream" : "unary";
}

}  // namespace

struct CallMetrics::Method {
  prometheus::Counter* started = nullptr;
  std::array<prometheus::Counter*, kCodeNames.size()> handled{};
  prometheus::Histogram* seconds = nullptr;
};

// Lives as long as its call.
class CallMetrics::Interceptor final : public grpc::experimental::Interceptor {
 public:
  explicit Interceptor(const Method* method)
      : method_(method), start_(std::chrono::steady_clock::now()) {
    method_->started->Increment();
  }
  ~Interceptor() override {
    method_->handled[code_]->Increment();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    method_->seconds->Observe(seconds.count());
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(Hook::PRE_SEND_STATUS)) {
      const auto code = static_cast<size_t>(methods->GetSendStatus().error_code());
      code_ = code < kCodeNames.size() ? code : static_cast<size_t>(grpc::StatusCode::UNKNOWN);
    }
    methods->Proceed();
  }

 private:
  const Method* const method_;
  const std::chrono::steady_clock::time_point start_;
  // A call that ends without a status was cut off.
  size_t code_ = static_cast<size_t>(grpc::StatusCode::CANCELLED);
};

class CallMetrics::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(const CallMetrics* metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const auto method = metrics_->methods_.find(info->method());
    if (method == metrics_->methods_.end()) return nullptr;
    return new Interceptor(method->second.get());
  }

 private:
  const CallMetrics* const metrics_;
};

CallMetrics::CallMetrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      started_(prometheus::BuildCounter()
                   .Name("grpc_server_started_total")
                   .Help("Calls started.")
                   .Register(*registry_)),
      handled_(prometheus::BuildCounter()
                   .Name("grpc_server_handled_total")
                   .Help("Calls completed, by status code.")
                   .Register(*registry_)),
      seconds_(prometheus::BuildHistogram()
                   .Name("grpc_server_handling_seconds")
                   .Help("Time from the start of a call to its end.")
                   .Register(*registry_)) {
  AddService("strata.v1.InferenceService");
  AddService("strata.v1.CacheService");
  AddService("grpc.health.v1.Health");
  AddService("grpc.reflection.v1alpha.ServerReflection");
}

CallMetrics::~CallMetrics() = default;

void CallMetrics::AddService(const std::string& full_name) {
  const auto* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(full_name);
  STRATA_CHECK(service != nullptr);  // linked in
  for (int i = 0; i < service->method_count(); ++i) {
    AddMethod(full_name, service->method(i)->name(), TypeName(*service->method(i)));
  }
}

void CallMetrics::AddMethod(const std::string& service, const std::string& method,
                            const std::string& type) {
  const prometheus::Labels labels = {
      {"grpc_service", service}, {"grpc_method", method}, {"grpc_type", type}};
  auto entry = std::make_unique<Method>();
  entry->started = &started_.Add(labels);
  entry->seconds = &seconds_.Add(labels, kSecondsBounds);
  for (size_t code = 0; code < kCodeNames.size(); ++code) {
    prometheus::Labels with_code = labels;
    with_code["grpc_code"] = kCodeNames[code];
    entry->handled[code] = &handled_.Add(with_code);
  }
  methods_[absl::StrCat("/", service, "/", method)] = std::move(entry);
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallMetrics::MakeInterceptorFactory() {
  return std::make_unique<Factory>(this);
}

}  // namespace strata::rpc
