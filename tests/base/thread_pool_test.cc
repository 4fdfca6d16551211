#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(ThreadPoolTest, RunsEveryIndexOnceManyTimes) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (int round = 0; round < 2000; ++round) {
      const int count = round % 40;
      std::vector<std::atomic<int>> hits(40);
      pool.ParallelFor(count, [&](int64_t i, int thread) {
        ASSERT_LT(thread, threads);
        hits[i].fetch_add(1);
      });
      for (int i = 0; i < 40; ++i) ASSERT_EQ(hits[i].load(), i < count ? 1 : 0);
    }
  }
}

TEST(ThreadPoolTest, WakesWorkersThatFellAsleep) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the spin
    std::atomic<int> sum{0};
    pool.ParallelFor(100, [&](int64_t i, int) { sum += static_cast<int>(i); });
    ASSERT_EQ(sum.load(), 4950);
  }
}

}  // namespace
}  // namespace strata
