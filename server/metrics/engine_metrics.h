#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/engine/engine.h"

namespace strata {

// What the metrics say of the model and the build, besides what the engine does.
struct MetricLabels {
  std::string version;
  std::string git_commit;
  std::string model;
  std::string architecture;
  std::string weight_format;
  std::string backend;
  std::string device;  // what a GPU calls itself, or "cpu"
  std::optional<WarmAttentionFacts> warm_attention = std::nullopt;
};

// The families of one snapshot: everything with every label set, at 0 where nothing happened.
std::vector<prometheus::MetricFamily> EngineFamilies(const EngineSnapshot& snapshot,
                                                     const EngineOptions& options,
                                                     const TierOptions& tiers,
                                                     const PositionalPolicy& default_policy,
                                                     const MetricLabels& labels);

// Collects from an engine's latest snapshot; any thread. `engine` outlives it.
class EngineMetrics final : public prometheus::Collectable {
 public:
  EngineMetrics(const Engine* engine, MetricLabels labels);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Engine* const engine_;
  const MetricLabels labels_;
};

// process_*: CPU time, memory, descriptors and start time of this process.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace strata
