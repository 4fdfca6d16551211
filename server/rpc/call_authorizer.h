#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/rpc/bearer_tokens.h"
#include "server/rpc/security_metrics.h"

namespace strata::rpc {

// Which calls the tokens of two files open:
//   grpc.health.v1.Health            every caller
//   strata.v1.CacheService           the cache's tokens, where there are some; else as below
//   everything else                  the general tokens, where there are some; else every caller
//   reflection                       either
// Any thread.
class CallAuthorizer {
 public:
  // Either may be null, not both. `metrics` outlives this.
  CallAuthorizer(std::unique_ptr<BearerTokens> general, std::unique_ptr<BearerTokens> cache,
                 SecurityMetrics* metrics)
      : general_(std::move(general)), cache_(std::move(cache)), metrics_(metrics) {}

  // `path` is "/package.Service/Method", `authorization` that header's value, empty without one.
  // Unauthenticated without a known token; PermissionDenied with one for another service.
  absl::Status Check(absl::string_view path, absl::string_view authorization);
  void Refresh();

 private:
  absl::Status Refuse(Refusal why);

  const std::unique_ptr<BearerTokens> general_;
  const std::unique_ptr<BearerTokens> cache_;
  SecurityMetrics* const metrics_;
};

}  // namespace strata::rpc
