#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/duration_histogram.h"
#include "prometheus/metric_family.h"
#include "server/engine/engine.h"

namespace strata {

// Labels of one time series, in the order they are written.
using MetricLabelList = std::vector<std::pair<std::string, std::string>>;

// Builds metric families from plain numbers. Series of one name are added one after the other.
class FamilyBuilder {
 public:
  void Counter(const std::string& name, const std::string& help, double value,
               const MetricLabelList& labels = {});
  void Gauge(const std::string& name, const std::string& help, double value,
             const MetricLabelList& labels = {});
  // A snapshot without bounds (nothing observed yet) has the unbounded bucket alone.
  void Histogram(const std::string& name, const std::string& help,
                 const HistogramSnapshot& histogram, const MetricLabelList& labels = {});
  void Histogram(const std::string& name, const std::string& help,
                 const DurationHistogram& histogram, const MetricLabelList& labels = {});

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric* Add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const MetricLabelList& labels);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace strata
