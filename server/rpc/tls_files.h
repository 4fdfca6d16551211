#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace strata::rpc {

// Where a server's identity lies; PEM files. All empty: no TLS.
struct TlsFiles {
  std::string certificate;  // the server's, then those between it and the root
  std::string key;          // of the first certificate
  std::string client_ca;    // who may sign client certificates; empty: clients need none

  bool enabled() const { return !certificate.empty() || !key.empty() || !client_ca.empty(); }
};

// Their contents, which belong together.
struct TlsMaterial {
  std::string certificate;
  std::string key;
  std::string client_ca;
  absl::Time not_after;  // when the server's certificate expires
};

// Reads and checks them: PEM, the key is the certificate's, the certificate is valid at `now`, and
// at least one client authority is. InvalidArgument naming the file and what is wrong with it.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files, absl::Time now);

}  // namespace strata::rpc
