#include "server/rpc/security_metrics.h"

namespace strata::rpc {
namespace {

const char* NameOf(Refusal why) {
  switch (why) {
    case Refusal::kNoToken:
      return "no_token";
    case Refusal::kWrongToken:
      return "wrong_token";
    case Refusal::kWrongService:
      return "wrong_service";
  }
  return "";
}

}  // namespace

SecurityMetrics::SecurityMetrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      refusals_(prometheus::BuildCounter()
                    .Name("strata_auth_refused_total")
                    .Help("Calls refused for want of a fitting bearer token.")
                    .Register(*registry_)),
      reloads_(prometheus::BuildCounter()
                   .Name("strata_credential_reloads_total")
                   .Help("Changed certificate or token files that were read, by result: a rejected "
                         "one leaves the one before in force.")
                   .Register(*registry_)),
      expiry_(prometheus::BuildGauge()
                  .Name("strata_tls_certificate_expiry_timestamp_seconds")
                  .Help("When the certificate in force expires; absent without TLS.")
                  .Register(*registry_)),
      connections_refused_(prometheus::BuildCounter()
                               .Name("strata_connections_refused_total")
                               .Help("Connections closed because --max-connections were open.")
                               .Register(*registry_)
                               .Add({})) {
  for (const Refusal why : {Refusal::kNoToken, Refusal::kWrongToken, Refusal::kWrongService}) {
    refusals_.Add({{"reason", NameOf(why)}});
  }
  for (const char* option : {"tls-cert", "token-file", "cache-token-file"}) {
    for (const char* result : {"accepted", "rejected"}) {
      reloads_.Add({{"option", option}, {"result", result}});
    }
  }
}

void SecurityMetrics::CountRefusal(Refusal why) {
  refusals_.Add({{"reason", NameOf(why)}}).Increment();
}

void SecurityMetrics::CountReload(const std::string& option, bool accepted) {
  reloads_.Add({{"option", option}, {"result", accepted ? "accepted" : "rejected"}}).Increment();
}

void SecurityMetrics::SetCertificateExpiry(absl::Time not_after) {
  expiry_.Add({}).Set(static_cast<double>(absl::ToUnixSeconds(not_after)));
}

}  // namespace strata::rpc
