#include "base/thread_pool.h"

#include <sched.h>

#include <chrono>

#include "base/check.h"

namespace strata {
namespace {

// Long enough to bridge the serial parts of a decode step, short enough to cost an idle server
// nothing that shows.
constexpr std::chrono::microseconds kSpin{50};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until `done()` holds or the spin time is over; returns whether it holds.
template <typename Done>
bool SpinUntil(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

}  // namespace

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

ThreadPool::ThreadPool(int threads) {
  STRATA_CHECK(threads >= 0);
  const int total = threads == 0 ? UsableCpus() : threads;
  for (int i = 1; i < total; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t count, Function function, const void* body) {
  function_ = function;
  body_ = body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  Drain(0);
  // Every worker must have left the loop before its fields may change for the next one.
  const auto idle = [this] { return running_.load(std::memory_order_acquire) == 0; };
  while (!SpinUntil(idle)) {
    const int running = running_.load(std::memory_order_acquire);
    if (running != 0) running_.wait(running, std::memory_order_acquire);
  }
}

void ThreadPool::Drain(int thread) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    function_(body_, i, thread);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  while (true) {
    const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    while (!SpinUntil(changed)) epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    Drain(thread);
    if (running_.fetch_sub(1, std::memory_order_release) == 1) running_.notify_one();
  }
}

}  // namespace strata
