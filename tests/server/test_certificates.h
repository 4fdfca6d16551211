#pragma once

#include <string>

namespace strata::rpc {

// A certificate and its key, PEM.
struct TestIdentity {
  std::string certificate;
  std::string key;
};

struct TestCertificateOptions {
  std::string name = "localhost";  // common name and subject alternative name
  int valid_from_s = -3600;        // from now
  int valid_until_s = 3600;
  const TestIdentity* issuer = nullptr;  // null: signs itself, as an authority
};

// Makes a P-256 key and a certificate for it.
TestIdentity MakeTestIdentity(const TestCertificateOptions& options);

}  // namespace strata::rpc
