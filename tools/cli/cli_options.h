#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "strata/v1/inference.pb.h"

namespace strata::cli {

enum class Command { kHelp, kGenerate, kTokenize, kStats, kTop, kInfo };

// How to reach a server that wants TLS or a token. Files; empty: not given.
struct ClientSecurity {
  bool tls = false;              // with the system's authorities, unless tls_ca says others
  std::string tls_ca;            // PEM: whom to trust
  std::string tls_cert;          // PEM: this client's certificate
  std::string tls_key;           // and its key
  std::string tls_name;          // the name in the server's certificate; empty: the address's
  std::string token_file;        // its first token is sent along
  bool plaintext_token = false;  // to another machine too

  bool uses_tls() const { return tls || !tls_ca.empty() || !tls_cert.empty(); }
};

// What one command line asks for.
struct CliOptions {
  Command command = Command::kHelp;
  std::string help;  // for kHelp
  std::string server = "127.0.0.1:50051";
  ClientSecurity security;
  bool json = false;
  bool quiet = false;                               // no progress, no summary
  std::optional<std::chrono::nanoseconds> timeout;  // of the call

  bool once = false;                                            // top: one report
  std::chrono::nanoseconds interval = std::chrono::seconds(1);  // top: between reports

  std::string input_file;        // the prompt or text comes from here; "-": standard input
  v1::GenerateRequest generate;  // all but such an input
  v1::TokenizeRequest tokenize;
};

// InvalidArgument, naming the argument, for what is wrong. `default_server` is STRATA_SERVER's
// value, or empty.
absl::StatusOr<CliOptions> ParseCommandLine(const std::vector<std::string>& arguments,
                                            const std::string& default_server);

}  // namespace strata::cli
