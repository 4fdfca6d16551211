#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace strata {

// Answers of the probes; called on the server's threads.
struct Probes {
  std::function<bool()> live;
  std::function<bool()> ready;
};

// Plain HTTP for machines that look after this one: /metrics, /healthz, /readyz.
class MetricsHttpServer {
 public:
  // Unavailable, naming the address, when it cannot be bound. Port 0 takes any free one.
  static absl::StatusOr<std::unique_ptr<MetricsHttpServer>> Start(const std::string& listen,
                                                                  Probes probes);
  virtual ~MetricsHttpServer() = default;  // stops

  virtual const std::string& address() const = 0;
  // Any thread. What goes away by itself is left out from then on.
  virtual void Add(const std::shared_ptr<prometheus::Collectable>& source) = 0;
};

}  // namespace strata
