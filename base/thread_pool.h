#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace strata {

// A fixed pool for the parallel loops of a step: the calling thread works too. Between loops a
// worker spins briefly before it sleeps, because a decode step has hundreds of loops a few
// microseconds apart. One loop at a time, always from the same thread; bodies must not start loops.
//
// A loop never waits for a worker that has not joined it: on a busy machine, one that is not
// scheduled costs its share of the work and no more.
class ThreadPool {
 public:
  // threads >= 1, the caller included; 0 means one a CPU this process may use.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(index, thread) once for each index in [0, count), thread in [0, threads()); returns
  // when all are done. Which thread gets which index is not fixed: bodies must not depend on it.
  template <typename Body>
  void ParallelFor(int64_t count, const Body& body) {
    if (workers_.empty() || count <= 1) {
      for (int64_t i = 0; i < count; ++i) body(i, 0);
      return;
    }
    Run(count, &Call<Body>, &body);
  }

 private:
  using Function = void (*)(const void* body, int64_t index, int thread);

  template <typename Body>
  static void Call(const void* body, int64_t index, int thread) {
    (*static_cast<const Body*>(body))(index, thread);
  }

  void Run(int64_t count, Function function, const void* body);
  void WorkerLoop(int thread);
  bool Join(uint32_t state);
  void Leave();
  void Drain(int thread);

  // The loop in progress: written by the caller while no loop is open and nobody has joined.
  Function function_ = nullptr;
  const void* body_ = nullptr;
  int64_t count_ = 0;

  // Number of the loop, whether it is open to workers, how many of them are in it: one word, so
  // that joining and closing exclude each other. The number may wrap: a worker that takes a loop
  // for one it knows only stays out of it.
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::vector<std::thread> workers_;
};

// CPUs this process may run on (its affinity mask), at least 1.
int UsableCpus();

}  // namespace strata
