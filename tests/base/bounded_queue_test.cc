#include "base/bounded_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(BoundedQueueTest, KeepsOrderAndRefusesWhenFull) {
  BoundedQueue<int> queue(3);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.TryPush(10 * round + i));
    EXPECT_FALSE(queue.TryPush(99));
    EXPECT_EQ(queue.size(), 3u);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.TryPop(), 10 * round + i);
    EXPECT_EQ(queue.TryPop(), std::nullopt);
  }
}

TEST(BoundedQueueTest, ClosedQueueHandsOutWhatItHas) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(5)));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(std::make_unique<int>(6)));
  EXPECT_EQ(**queue.Pop(), 5);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, EveryValueArrivesOnce) {
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(16);
  std::atomic<int64_t> sum{0};
  std::atomic<int> count{0};
  std::vector<std::thread> consumers;
  for (int i = 0; i < 2; ++i) {
    consumers.emplace_back([&] {
      while (const auto value = queue.Pop()) {
        sum += *value;
        ++count;
      }
    });
  }
  std::vector<std::thread> producers;
  for (int i = 0; i < 2; ++i) {
    producers.emplace_back([&, i] {
      for (int v = 0; v < kEach; ++v) {
        while (!queue.TryPush(i * kEach + v)) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();
  EXPECT_EQ(count, 2 * kEach);
  EXPECT_EQ(sum, int64_t{2 * kEach} * (2 * kEach - 1) / 2);
}

}  // namespace
}  // namespace strata
