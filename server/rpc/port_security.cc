#include "server/rpc/port_security.h"

#include <utility>

#include "base/status_macros.h"
#include "server/rpc/server_credentials.h"
#include "spdlog/spdlog.h"

namespace strata::rpc {
namespace {

std::string Date(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

void Report(SecurityMetrics* metrics, const std::string& option, const absl::Status& status) {
  metrics->CountReload(option, status.ok());
  if (status.ok()) {
    spdlog::info("{}: changed; the new content is in force", option);
  } else {
    spdlog::error("{}: changed, but the one before stays in force: {}", option,
                  std::string(status.message()));
  }
}

absl::StatusOr<std::unique_ptr<BearerTokens>> LoadTokens(const std::string& option,
                                                         const std::string& path,
                                                         SecurityMetrics* metrics) {
  if (path.empty()) return std::unique_ptr<BearerTokens>();
  return BearerTokens::Load(
      path, [option, metrics](const absl::Status& status) { Report(metrics, option, status); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<PortSecurity>> PortSecurity::Load(const SecurityOptions& options,
                                                                 SecurityMetrics* metrics) {
  auto security = std::make_unique<PortSecurity>();
  if (options.tls.enabled()) {
    STRATA_ASSIGN_OR_RETURN(
        security->tls_,
        TlsReloader::Load(options.tls, [metrics](const absl::StatusOr<TlsMaterial>& material) {
          Report(metrics, "tls-cert", material.status());
          if (material.ok()) metrics->SetCertificateExpiry(material->not_after);
        }));
    const absl::Time not_after = security->tls_->Latest()->not_after;
    metrics->SetCertificateExpiry(not_after);
    spdlog::info("TLS{} with a certificate valid until {}",
                 security->tls_->asks_clients() ? ", of clients too," : "", Date(not_after));
  }
  STRATA_ASSIGN_OR_RETURN(auto general, LoadTokens("token-file", options.token_file, metrics));
  STRATA_ASSIGN_OR_RETURN(auto cache,
                          LoadTokens("cache-token-file", options.cache_token_file, metrics));
  if (general != nullptr || cache != nullptr) {
    security->authorizer_ =
        std::make_unique<CallAuthorizer>(std::move(general), std::move(cache), metrics);
  }
  return security;
}

std::shared_ptr<grpc::ServerCredentials> PortSecurity::MakeCredentials() const {
  return MakeServerCredentials(tls_.get(), authorizer_.get());
}

void PortSecurity::Refresh() {
  if (tls_ != nullptr) tls_->Latest();
  if (authorizer_ != nullptr) authorizer_->Refresh();
}

}  // namespace strata::rpc
