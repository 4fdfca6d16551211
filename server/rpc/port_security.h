#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "server/rpc/call_authorizer.h"
#include "server/rpc/security_metrics.h"
#include "server/rpc/tls_files.h"
#include "server/rpc/tls_reloader.h"

namespace strata::rpc {

struct SecurityOptions {
  TlsFiles tls;
  std::string token_file;        // empty: callers need no token
  std::string cache_token_file;  // of CacheService; empty: as for the rest
};

// The files behind a port's credentials, and what becomes of their changes: each is logged and
// counted. Any thread; outlives every server with its credentials.
class PortSecurity {
 public:
  // InvalidArgument naming file and reason. `metrics` outlives the result.
  static absl::StatusOr<std::unique_ptr<PortSecurity>> Load(const SecurityOptions& options,
                                                            SecurityMetrics* metrics);

  std::shared_ptr<grpc::ServerCredentials> MakeCredentials() const;
  // Reads what changed now rather than at the next call or connection.
  void Refresh();

 private:
  std::unique_ptr<TlsReloader> tls_;            // null: plain text
  std::unique_ptr<CallAuthorizer> authorizer_;  // null: every call
};

}  // namespace strata::rpc
