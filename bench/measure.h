#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "base/thread_pool.h"

namespace strata::bench {

// Seconds `body` takes, once.
template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The median of `runs` timings of `body`, after one that is not counted.
double MedianSeconds(int runs, const std::function<void()>& body);
double Median(std::vector<double> values);

// Root mean square of a - b over that of b; as many values in both.
double RelativeRms(absl::Span<const float> a, absl::Span<const float> b);

// Bytes a second at which all threads of the pool together read memory that no cache holds: the
// yardstick of every memory-bound figure, measured in the same run as the figure.
double ReadBandwidth(ThreadPool* pool);

}  // namespace strata::bench
