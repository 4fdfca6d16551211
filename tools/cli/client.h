#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "strata/v1/inference.pb.h"
#include "tools/cli/cli_options.h"

namespace strata::cli {

// The calls of the command line, one at a time. Errors carry the server's code and message, and its
// google.rpc details as payloads (server/rpc/errors.h).
class Client {
 public:
  // InvalidArgument for files that cannot be read, and for a token that would cross the network
  // in plain text.
  static absl::StatusOr<std::unique_ptr<Client>> Create(
      const std::string& server, const ClientSecurity& security,
      std::optional<std::chrono::nanoseconds> timeout);
  virtual ~Client() = default;

  virtual absl::Status Generate(const v1::GenerateRequest& request,
                                const std::function<void(const v1::GenerateEvent&)>& on_event) = 0;
  virtual absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) = 0;
  virtual absl::StatusOr<v1::CacheStats> Stats() = 0;
  // Until `on_stats` returns false (OK), the server ends it, or it fails. Has no timeout.
  virtual absl::Status Watch(const v1::WatchCacheStatsRequest& request,
                             const std::function<bool(const v1::CacheStats&)>& on_stats) = 0;
  virtual absl::StatusOr<v1::ServerInfo> Info() = 0;
  virtual absl::StatusOr<v1::ListModelsResponse> Models() = 0;

  // Any thread: ends the call that is running, and all that follow, with CANCELLED.
  virtual void Cancel() = 0;
};

}  // namespace strata::cli
