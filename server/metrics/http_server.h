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

// Plain HTTP for those that look after this server: /metrics, /healthz and /readyz for machines,
// and for people a page at / that draws what /stats.json says. Connections are closed after each
// answer, so that no open page keeps a probe waiting.
class MetricsHttpServer {
 public:
  // Unavailable, naming the address, when it cannot be bound. Port 0 takes any free one.
  // `stats_json` makes the JSON of the page; called on the server's threads.
  static absl::StatusOr<std::unique_ptr<MetricsHttpServer>> Start(
      const std::string& listen, Probes probes, std::function<std::string()> stats_json);
  virtual ~MetricsHttpServer() = default;  // stops

  virtual const std::string& address() const = 0;
  // Any thread. What goes away by itself is left out from then on.
  virtual void Add(const std::shared_ptr<prometheus::Collectable>& source) = 0;
};

}  // namespace strata
