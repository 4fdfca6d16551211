#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

namespace strata::rpc {

// Why a call was refused before any service saw it.
enum class Refusal { kNoToken, kWrongToken, kWrongService };

// What happens at the door: calls and connections refused, files read again. Every series is there
// from the start. Any thread.
class SecurityMetrics {
 public:
  SecurityMetrics();

  void CountRefusal(Refusal why);
  void CountConnectionRefused() { connections_refused_.Increment(); }
  // A read of the changed file of option `option` (tls-cert, token-file, cache-token-file).
  void CountReload(const std::string& option, bool accepted);
  void SetCertificateExpiry(absl::Time not_after);

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Counter>& refusals_;
  prometheus::Family<prometheus::Counter>& reloads_;
  prometheus::Family<prometheus::Gauge>& expiry_;
  prometheus::Counter& connections_refused_;
};

}  // namespace strata::rpc
