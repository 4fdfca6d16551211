#include "base/thread_pool.h"

#include <sched.h>

#include <chrono>

#include "base/check.h"

namespace strata {
namespace {

// Long enough to bridge the serial parts of a decode step, short enough to cost an idle server
// nothing that shows.
constexpr std::chrono::microseconds kSpin{50};

// The parts of ThreadPool::state_.
constexpr uint32_t kJoinedMask = 0x3fff;
constexpr uint32_t kStop = 0x4000;
constexpr uint32_t kOpen = 0x8000;
constexpr uint32_t kLowMask = kJoinedMask | kStop | kOpen;
constexpr uint32_t kLoop = 0x10000;

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
  STRATA_CHECK(total <= static_cast<int>(kJoinedMask));
  for (int i = 1; i < total; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t count, Function function, const void* body) {
  function_ = function;
  body_ = body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  // Sequentially consistent, as in WorkerLoop: either the sleeper is seen here or it sees the loop.
  state_.store(((state_.load(std::memory_order_relaxed) & ~kLowMask) + kLoop) | kOpen);
  if (sleepers_.load() != 0) state_.notify_all();
  Drain(0);
  uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
  // Everybody who joined must have left before the loop's fields may change for the next one.
  while ((state & kJoinedMask) != 0) {
    const auto idle = [&] {
      state = state_.load(std::memory_order_acquire);
      return (state & kJoinedMask) == 0;
    };
    if (!SpinUntil(idle)) state_.wait(state, std::memory_order_acquire);
  }
}

bool ThreadPool::Join(uint32_t state) {
  while ((state & kOpen) != 0) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) return true;
  }
  return false;
}

void ThreadPool::Leave() {
  const uint32_t before = state_.fetch_sub(1, std::memory_order_release);
  // The last one out of a closed loop wakes the caller, should it have fallen asleep.
  if ((before & kLowMask) == 1) state_.notify_all();
}

void ThreadPool::Drain(int thread) {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    function_(body_, i, thread);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;  // number of the last loop looked at
  while (true) {
    uint32_t state = 0;
    const auto changed = [&] {
      state = state_.load();
      return (state & ~kLowMask) != seen || (state & kStop) != 0;
    };
    while (!SpinUntil(changed)) {
      sleepers_.fetch_add(1);
      if (!changed()) state_.wait(state, std::memory_order_relaxed);
      sleepers_.fetch_sub(1);
    }
    seen = state & ~kLowMask;
    if ((state & kStop) != 0) return;
    if (!Join(state)) continue;
    Drain(thread);
    Leave();
  }
}

}  // namespace strata
