#include "base/duration_histogram.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(DurationHistogramTest, CountsInTheFirstBucketThatHoldsTheValue) {
  DurationHistogram histogram;
  histogram.Observe(nanoseconds(0));
  histogram.Observe(microseconds(10));  // a bound belongs to its bucket
  histogram.Observe(nanoseconds(10001));
  histogram.Observe(seconds(10));
  histogram.Observe(seconds(11));
  EXPECT_EQ(histogram.counts.front(), 2u);
  EXPECT_EQ(histogram.counts[1], 1u);
  EXPECT_EQ(histogram.counts[DurationHistogram::kBuckets - 2], 1u);
  EXPECT_EQ(histogram.counts.back(), 1u);
  EXPECT_EQ(histogram.count(), 5u);
  EXPECT_DOUBLE_EQ(histogram.sum_seconds(), 21.000020001);
}

TEST(DurationHistogramTest, ThreadsAddUp) {
  SharedDurationHistogram shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&shared] {
      for (int j = 0; j < 1000; ++j) shared.Observe(microseconds(j % 2 == 0 ? 1 : 2000));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const DurationHistogram histogram = shared.Snapshot();
  EXPECT_EQ(histogram.counts[0], 2000u);
  EXPECT_EQ(histogram.counts[7], 2000u);  // up to 2.5 ms
  EXPECT_EQ(histogram.count(), 4000u);
  EXPECT_EQ(histogram.sum, microseconds(2000 * 2001));
}

}  // namespace
}  // namespace strata
