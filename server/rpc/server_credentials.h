#pragma once

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/rpc/call_authorizer.h"
#include "server/rpc/tls_reloader.h"

namespace strata::rpc {

// Credentials of a port: TLS with what `tls` has at the time of each handshake, or plain text where
// it is null; calls pass `authorizer`, unless it is null, before any service or interceptor sees
// them. Both outlive every server with these credentials.
//
// Made of gRPC's C interface: of its C++ ones, one takes a fixed pair, and the other watches files
// itself and serves whatever pair lies there, fitting or not.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(TlsReloader* tls,
                                                               CallAuthorizer* authorizer);

}  // namespace strata::rpc
