#include "base/thread_pool.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
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

std::set<int> ThreadIds() {
  std::set<int> ids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(std::stoi(task.path().filename()));
  }
  return ids;
}

std::atomic<bool> worker_is_held{false};
std::atomic<bool> worker_may_go{false};

// The worker is held in a signal handler, as a busy machine might hold it: loops end without it.
TEST(ThreadPoolTest, DoesNotWaitForAWorkerThatHasNotJoined) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer keeps signals back while a thread waits";
#endif
  const std::set<int> before = ThreadIds();
  ThreadPool pool(2);
  std::set<int> workers = ThreadIds();
  for (const int id : before) workers.erase(id);
  ASSERT_EQ(workers.size(), 1u);
  struct sigaction hold {};
  hold.sa_handler = [](int) {
    worker_is_held = true;
    while (!worker_may_go) usleep(100);
  };
  ASSERT_EQ(sigaction(SIGUSR1, &hold, nullptr), 0);
  ASSERT_EQ(syscall(SYS_tgkill, getpid(), *workers.begin(), SIGUSR1), 0);
  while (!worker_is_held) usleep(100);
  for (int round = 0; round < 100; ++round) {
    int sum = 0;
    pool.ParallelFor(10, [&](int64_t i, int thread) {
      ASSERT_EQ(thread, 0);
      sum += static_cast<int>(i);
    });
    ASSERT_EQ(sum, 45);
  }
  worker_may_go = true;
}

}  // namespace
}  // namespace strata
