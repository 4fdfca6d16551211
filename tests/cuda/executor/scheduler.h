#pragma once

// Runs one thread block at a time: its fibers, the queue of ready ones in the schedule's order, and
// where each waits. The executor's inside; one host thread at a time (the runtime's lock).

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/cuda/executor/control.h"
#include "tests/cuda/executor/fiber.h"
#include "tests/cuda/executor/launch.h"
#include "tests/cuda/executor/rendezvous.h"

namespace executor {

constexpr unsigned kMaxBlockThreads = 1024;

struct PendingCopy {  // a cp.async not yet waited for
  void* destination;
  const void* source;
  int bytes, source_bytes, group;
};

// One CUDA thread.
struct Thread {
  explicit Thread(unsigned id);

  Fiber fiber;
  const unsigned id, lane, warp;
  enum class State : uint8_t { kReady, kInBarrier, kInWarpOp, kDone } state = State::kDone;
  uint3 index{};
  Location location{"", 0};
  WarpOp op{};  // of the pending warp collective
  unsigned mask = 0;
  void* payload = nullptr;
  int predicate = 0, reduced = 0;  // of the pending block barrier
  std::vector<PendingCopy> copies;
  int copy_group = 0;
};

enum class SchedulePolicy { kForward, kReverse, kRandom };

const char* NameOf(WarpOp op);

class Scheduler {
 public:
  static Scheduler& Get();

  void SetPolicy(SchedulePolicy policy, uint64_t seed);

  // Runs all blocks of a grid to the end, in the schedule's order.
  void RunGrid(const KernelCall& call, const std::function<void()>& body);
  void RunThread(Thread* thread);  // what a thread's fiber does, once a block

  Thread* current() { return current_; }  // null outside kernels
  const KernelCall& call() const { return *call_; }
  Stats& stats() { return stats_; }

  int Barrier(BarrierReduction reduction, int predicate, Location location);
  void Collective(WarpOp op, unsigned mask, void* payload, WarpFunction function,
                  bool orders_memory, Location location);
  void Fence();
  void Yield();
  unsigned LiveLanes() const { return warps_[current_->warp].live; }

 private:
  struct Warp {
    unsigned live = 0, waiting = 0;  // lanes
  };

  void RunBlock(uint3 block);
  void StartThreads(unsigned threads);
  void Resume(Thread* thread);
  void Suspend(Thread* thread) { thread->fiber.Suspend(); }
  void PushReady(Thread* thread);
  Thread* PopReady();
  void ReleaseBarrier();
  void CheckPeers(const Thread& me, const Warp& warp) const;
  Thread* LaneOf(unsigned warp, unsigned lane) const { return threads_[warp * 32 + lane].get(); }
  [[noreturn]] void ReportDeadlock() const;
  uint64_t Random();
  void* BarrierObject();  // what ThreadSanitizer sees threads meet at
  void* WarpObject(unsigned warp);

  SchedulePolicy policy_ = SchedulePolicy::kForward;
  uint64_t random_ = 88172645463325252ull;
  Stats stats_;

  const KernelCall* call_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  Thread* current_ = nullptr;
  // Under ThreadSanitizer neighbouring blocks use different fibers: races between blocks are seen
  // too.
  std::vector<std::unique_ptr<Thread>> pools_[2];
  std::unique_ptr<Thread>* threads_ = nullptr;  // of the block that runs
  std::array<Warp, kMaxBlockThreads / 32> warps_;
  std::array<Thread*, kMaxBlockThreads> ready_;  // a ring; a thread is in it at most once
  unsigned ready_head_ = 0, ready_count_ = 0;

  unsigned block_threads_ = 0, alive_ = 0, in_barrier_ = 0;
  BarrierReduction barrier_reduction_ = BarrierReduction::kNone;
  Location barrier_location_{"", 0};
  uint64_t barrier_generation_ = 0, block_number_ = 0;

  alignas(64) std::array<char, 1 << 16> meeting_points_{};
  char fence_ = 0, launch_ = 0, end_ = 0;
};

}  // namespace executor
