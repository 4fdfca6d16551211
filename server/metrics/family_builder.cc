#include "server/metrics/family_builder.h"

#include <limits>

#include "prometheus/client_metric.h"

namespace strata {

prometheus::ClientMetric* FamilyBuilder::Add(const std::string& name, const std::string& help,
                                             prometheus::MetricType type,
                                             const MetricLabelList& labels) {
  if (families_.empty() || families_.back().name != name) {
    families_.push_back({name, help, type, {}});
  }
  prometheus::ClientMetric metric;
  for (const auto& [label, value] : labels) metric.label.push_back({label, value});
  families_.back().metric.push_back(std::move(metric));
  return &families_.back().metric.back();
}

void FamilyBuilder::Counter(const std::string& name, const std::string& help, double value,
                            const MetricLabelList& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels)->counter.value = value;
}

void FamilyBuilder::Gauge(const std::string& name, const std::string& help, double value,
                          const MetricLabelList& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels)->gauge.value = value;
}

void FamilyBuilder::Histogram(const std::string& name, const std::string& help,
                              const DurationHistogram& histogram, const MetricLabelList& labels) {
  HistogramSnapshot copy;
  copy.bounds.assign(DurationHistogram::kBounds.begin(), DurationHistogram::kBounds.end());
  copy.counts.assign(histogram.counts.begin(), histogram.counts.end());
  copy.sum = histogram.sum_seconds();
  Histogram(name, help, copy, labels);
}

void FamilyBuilder::Histogram(const std::string& name, const std::string& help,
                              const HistogramSnapshot& histogram, const MetricLabelList& labels) {
  auto& target = Add(name, help, prometheus::MetricType::Histogram, labels)->histogram;
  uint64_t cumulative = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    cumulative += histogram.counts[i];
    const double bound =
        i < histogram.bounds.size() ? histogram.bounds[i] : std::numeric_limits<double>::infinity();
    target.bucket.push_back({cumulative, bound});
  }
  if (target.bucket.empty()) {
    target.bucket.push_back({0, std::numeric_limits<double>::infinity()});
  }
  target.sample_count = cumulative;
  target.sample_sum = histogram.sum;
}

}  // namespace strata
