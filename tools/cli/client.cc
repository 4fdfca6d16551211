#include "tools/cli/client.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/small_file.h"
#include "base/status_macros.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/config/server_options.h"
#include "strata/v1/inference.grpc.pb.h"

namespace strata::cli {
namespace {

constexpr int kMessageBytesMax = 256 << 20;
constexpr size_t kSecretBytesMax = 1 << 20;

// Codes have the same numbers in gRPC and absl.
absl::Status ToAbsl(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status converted(static_cast<absl::StatusCode>(status.error_code()),
                         status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return converted;
  for (const auto& any : details.details()) {
    converted.SetPayload(any.type_url(), absl::Cord(any.value()));
  }
  return converted;
}

class ClientImpl final : public Client {
 public:
  ClientImpl(const std::shared_ptr<grpc::Channel>& channel, std::string authorization,
             std::optional<std::chrono::nanoseconds> timeout)
      : timeout_(timeout), authorization_(std::move(authorization)) {
    inference_ = v1::InferenceService::NewStub(channel);
    cache_ = v1::CacheService::NewStub(channel);
  }

  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<void(const v1::GenerateEvent&)>& on_event) override {
    return Call([&](grpc::ClientContext* context) {
      const auto reader = inference_->Generate(context, request);
      v1::GenerateEvent event;
      while (reader->Read(&event)) on_event(event);
      return reader->Finish();
    });
  }
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) override {
    return Unary<v1::TokenizeResponse>([&](grpc::ClientContext* context, auto* response) {
      return inference_->Tokenize(context, request, response);
    });
  }
  absl::StatusOr<v1::CacheStats> Stats() override {
    return Unary<v1::CacheStats>([&](grpc::ClientContext* context, auto* response) {
      return cache_->GetStats(context, {}, response);
    });
  }
  absl::Status Watch(const v1::WatchCacheStatsRequest& request,
                     const std::function<bool(const v1::CacheStats&)>& on_stats) override {
    bool enough = false;
    const absl::Status status = Call([&](grpc::ClientContext* context) {
      const auto reader = cache_->WatchStats(context, request);
      v1::CacheStats stats;
      while (!enough && reader->Read(&stats)) enough = !on_stats(stats);
      if (enough) context->TryCancel();
      return reader->Finish();
    });
    return enough ? absl::OkStatus() : status;
  }
  absl::StatusOr<v1::ServerInfo> Info() override {
    return Unary<v1::ServerInfo>([&](grpc::ClientContext* context, auto* response) {
      return inference_->GetServerInfo(context, {}, response);
    });
  }
  absl::StatusOr<v1::ListModelsResponse> Models() override {
    return Unary<v1::ListModelsResponse>([&](grpc::ClientContext* context, auto* response) {
      return inference_->ListModels(context, {}, response);
    });
  }

  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  // Runs `body` with a context that Cancel reaches.
  template <typename Body>
  absl::Status Call(Body body) {
    grpc::ClientContext context;
    if (timeout_.has_value()) {
      context.set_deadline(
          std::chrono::system_clock::now() +
          std::chrono::duration_cast<std::chrono::system_clock::duration>(*timeout_));
    }
    if (!authorization_.empty()) context.AddMetadata("authorization", authorization_);
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) return absl::CancelledError("interrupted");
      context_ = &context;
    }
    const absl::Status status = ToAbsl(body(&context));
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    return status;
  }
  template <typename Response, typename Body>
  absl::StatusOr<Response> Unary(Body body) {
    Response response;
    const absl::Status status =
        Call([&](grpc::ClientContext* context) { return body(context, &response); });
    if (!status.ok()) return status;
    return response;
  }

  const std::optional<std::chrono::nanoseconds> timeout_;
  const std::string authorization_;  // header field; empty: none
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::CacheService::Stub> cache_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

absl::StatusOr<std::string> ReadIfGiven(const std::string& path) {
  if (path.empty()) return std::string();
  return ReadSmallFile(path, kSecretBytesMax);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ClientSecurity& security) {
  if (!security.uses_tls()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  STRATA_ASSIGN_OR_RETURN(options.pem_root_certs, ReadIfGiven(security.tls_ca));
  STRATA_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadIfGiven(security.tls_cert));
  STRATA_ASSIGN_OR_RETURN(options.pem_private_key, ReadIfGiven(security.tls_key));
  return grpc::SslCredentials(options);
}

absl::StatusOr<std::string> AuthorizationOf(const std::string& server,
                                            const ClientSecurity& security) {
  if (security.token_file.empty()) return std::string();
  if (!security.uses_tls() && !security.plaintext_token && !IsLoopback(server)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file: the token would cross the network to ", server,
                     " in plain text; use --tls or --tls-ca, or --plaintext-token where something "
                     "else encrypts the way"));
  }
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadIfGiven(security.token_file));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view token = absl::StripAsciiWhitespace(line);
    if (!token.empty() && token.front() != '#') return absl::StrCat("Bearer ", token);
  }
  return absl::InvalidArgumentError(absl::StrCat(security.token_file, " has no token"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(
    const std::string& server, const ClientSecurity& security,
    std::optional<std::chrono::nanoseconds> timeout) {
  STRATA_ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(security));
  STRATA_ASSIGN_OR_RETURN(std::string authorization, AuthorizationOf(server, security));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  if (!security.tls_name.empty()) arguments.SetSslTargetNameOverride(security.tls_name);
  return std::make_unique<ClientImpl>(grpc::CreateCustomChannel(server, credentials, arguments),
                                      std::move(authorization), timeout);
}

}  // namespace strata::cli
