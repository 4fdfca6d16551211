#include "server/rpc/server_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "server/rpc/status_to_grpc.h"

namespace strata::rpc {
namespace {

// The identity that a port's handshakes use, and where newer ones come from.
struct Fetcher {
  TlsReloader* tls;
  std::shared_ptr<const TlsMaterial> given;  // on the C side now
};

// Called for each new connection, one at a time for a port.
grpc_ssl_certificate_config_reload_status Fetch(void* user_data,
                                                grpc_ssl_server_certificate_config** config) {
  auto* fetcher = static_cast<Fetcher*>(user_data);
  std::shared_ptr<const TlsMaterial> latest = fetcher->tls->Latest();
  if (latest == fetcher->given) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {latest->key.c_str(), latest->certificate.c_str()};
  // gRPC 1.51 aborts on a fetched config without roots. Where clients are not asked for a
  // certificate nothing is held against them, so any valid certificate will do.
  const std::string& roots = latest->client_ca.empty() ? latest->certificate : latest->client_ca;
  *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
  fetcher->given = std::move(latest);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

absl::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

void CheckCall(void* state, grpc_auth_context*, const grpc_metadata* fields, size_t count,
               grpc_process_auth_metadata_done_cb done, void* user_data) {
  absl::string_view path;
  std::vector<grpc_metadata> authorizations;
  for (size_t i = 0; i < count; ++i) {
    if (View(fields[i].key) == ":path") path = View(fields[i].value);
    if (View(fields[i].key) == "authorization") authorizations.push_back(fields[i]);
  }
  // Two tokens would be a guess at which one another hop looks at: neither counts.
  const absl::string_view authorization =
      authorizations.size() == 1 ? View(authorizations.front().value) : "";
  const absl::Status status = static_cast<CallAuthorizer*>(state)->Check(path, authorization);
  // Consumed: no handler sees the token, so none can log it.
  done(user_data, authorizations.data(), authorizations.size(), nullptr, 0,
       static_cast<grpc_status_code>(ToGrpcCode(status.code())),
       std::string(status.message()).c_str());
}

class CoreCredentials final : public grpc::ServerCredentials {
 public:
  CoreCredentials(TlsReloader* tls, CallAuthorizer* authorizer) : fetcher_{tls, nullptr} {
    if (tls == nullptr) {
      credentials_ = grpc_insecure_server_credentials_create();
    } else {
      credentials_ = grpc_ssl_server_credentials_create_with_options(
          grpc_ssl_server_credentials_create_options_using_config_fetcher(
              tls->asks_clients() ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                  : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
              Fetch, &fetcher_));
    }
    STRATA_CHECK(credentials_ != nullptr);
    if (authorizer == nullptr) return;
    grpc_server_credentials_set_auth_metadata_processor(credentials_,
                                                        {CheckCall, [](void*) {}, authorizer});
  }
  ~CoreCredentials() override { grpc_server_credentials_release(credentials_); }

  // Ours are set by the constructor.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    STRATA_CHECK(false);
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  Fetcher fetcher_;
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(TlsReloader* tls,
                                                               CallAuthorizer* authorizer) {
  return std::make_shared<CoreCredentials>(tls, authorizer);
}

}  // namespace strata::rpc
