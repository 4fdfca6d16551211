#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace strata {

// How long things took, counted in buckets from 10 us (a cached read) to 10 s (a disk that hangs).
// A plain value without allocations: it is copied into the snapshot of every step.
struct DurationHistogram {
  // Upper bounds in seconds; one more bucket has none.
  static constexpr std::array<double, 19> kBounds = {
      .00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01,
      .025,   .05,     .1,     .25,   .5,     1,     2.5,  5,     10};
  static constexpr size_t kBuckets = kBounds.size() + 1;

  std::array<uint64_t, kBuckets> counts{};
  std::chrono::nanoseconds sum{0};

  // The bucket of the first bound that is not below `took`.
  static size_t BucketOf(std::chrono::nanoseconds took) {
    const double seconds = std::chrono::duration<double>(took).count();
    return static_cast<size_t>(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) -
                               kBounds.begin());
  }
  void Observe(std::chrono::nanoseconds took) {
    ++counts[BucketOf(took)];
    sum += took;
  }
  uint64_t count() const {
    uint64_t total = 0;
    for (const uint64_t bucket : counts) total += bucket;
    return total;
  }
  double sum_seconds() const { return std::chrono::duration<double>(sum).count(); }
};

// The same, filled by several threads at once: two relaxed additions an observation, no lock. A
// snapshot taken meanwhile may miss what is being added, but never a whole observation twice.
class SharedDurationHistogram {
 public:
  void Observe(std::chrono::nanoseconds took) {
    counts_[DurationHistogram::BucketOf(took)].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(took.count(), std::memory_order_relaxed);
  }
  DurationHistogram Snapshot() const {
    DurationHistogram copy;
    for (size_t i = 0; i < copy.counts.size(); ++i) {
      copy.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    copy.sum = std::chrono::nanoseconds(sum_ns_.load(std::memory_order_relaxed));
    return copy;
  }

 private:
  std::array<std::atomic<uint64_t>, DurationHistogram::kBuckets> counts_{};
  std::atomic<int64_t> sum_ns_{0};
};

}  // namespace strata
