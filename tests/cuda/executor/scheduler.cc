#include "tests/cuda/executor/scheduler.h"

#include <algorithm>
#include <numeric>

#include "tests/cuda/executor/sanitizers.h"
#include "tests/cuda/executor/shared_memory_internal.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace executor {

Thread::Thread(unsigned number)
    : fiber(
          [](void* self) {
            for (;;) Scheduler::Get().RunThread(static_cast<Thread*>(self));
          },
          this, number),
      id(number),
      lane(number % 32),
      warp(number / 32) {}

Scheduler& Scheduler::Get() {
  static auto* scheduler = new Scheduler;  // never destroyed: fibers outlive main
  return *scheduler;
}

void Scheduler::SetPolicy(SchedulePolicy policy, uint64_t seed) {
  policy_ = policy;
  random_ = 88172645463325252ull ^ (seed * 0x9E3779B97F4A7C15ull);
  if (random_ == 0) random_ = 1;
  for (int i = 0; i < 8; ++i) Random();
}

uint64_t Scheduler::Random() {  // xorshift64
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

void Scheduler::PushReady(Thread* thread) {
  thread->state = Thread::State::kReady;
  ready_[(ready_head_ + ready_count_++) % kMaxBlockThreads] = thread;
}

Thread* Scheduler::PopReady() {
  if (ready_count_ == 0) return nullptr;
  if (policy_ == SchedulePolicy::kReverse) {
    return ready_[(ready_head_ + --ready_count_) % kMaxBlockThreads];
  }
  if (policy_ == SchedulePolicy::kRandom) {
    const auto pick = static_cast<unsigned>(Random() % ready_count_);
    std::swap(ready_[ready_head_], ready_[(ready_head_ + pick) % kMaxBlockThreads]);
  }
  Thread* thread = ready_[ready_head_];
  ready_head_ = (ready_head_ + 1) % kMaxBlockThreads;
  --ready_count_;
  return thread;
}

void Scheduler::Resume(Thread* thread) {
  current_ = thread;
  threadIdx = thread->index;
  ++stats_.switches;
  thread->fiber.Resume();
  current_ = nullptr;
}

void Scheduler::RunThread(Thread* thread) {
  TsanAcquire(&launch_);
  (*body_)();
  TsanRelease(&end_);
  if (!thread->copies.empty()) {
    Fail(thread->location, "a thread exits with %zu cp.async copies not waited for",
         thread->copies.size());
  }
  thread->state = Thread::State::kDone;
  --alive_;
  Warp& warp = warps_[thread->warp];
  warp.live &= ~(1u << thread->lane);
  for (unsigned lanes = warp.waiting; lanes != 0; lanes &= lanes - 1) {
    const Thread* other = LaneOf(thread->warp, static_cast<unsigned>(__builtin_ctz(lanes)));
    if (other->mask >> thread->lane & 1) {
      Fail(other->location,
           "lane %u waits for lane %u in %s(mask 0x%08x), but that lane has exited", other->lane,
           thread->lane, NameOf(other->op), other->mask);
    }
  }
  if (in_barrier_ > 0) {
    Fail(barrier_location_, "a thread exited while others of its block wait in a block barrier");
  }
  Suspend(thread);
}

void Scheduler::StartThreads(unsigned threads) {
  block_threads_ = alive_ = threads;
  in_barrier_ = ready_head_ = ready_count_ = 0;
  for (unsigned warp = 0; warp * 32 < threads; ++warp) {
    const unsigned lanes = threads - warp * 32;
    warps_[warp] = {lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1u, 0};
  }
#ifdef EXECUTOR_TSAN
  auto& pool = pools_[block_number_ % 2];
#else
  auto& pool = pools_[0];
#endif
  while (pool.size() < threads) {
    pool.push_back(std::make_unique<Thread>(static_cast<unsigned>(pool.size())));
  }
  threads_ = pool.data();
  for (unsigned i = 0; i < threads; ++i) {
    Thread* thread = threads_[i].get();
    thread->index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    thread->copies.clear();
    thread->copy_group = 0;
    thread->location = {"", 0};
    PushReady(thread);
  }
}

void Scheduler::RunBlock(uint3 block) {
  blockIdx = block;
  ++block_number_;
  BeginBlockMemory(call_->dynamic_shared_bytes);
  TsanRelease(&launch_);  // publishes this block's fresh shared memory and nothing else
  StartThreads(blockDim.x * blockDim.y * blockDim.z);
  ++stats_.blocks;
  stats_.threads += block_threads_;
  while (Thread* thread = PopReady()) Resume(thread);
  if (alive_ > 0) ReportDeadlock();
  EndBlockMemory();
}

void Scheduler::RunGrid(const KernelCall& call, const std::function<void()>& body) {
  if (current_ != nullptr) Fail({"launch", 0}, "a launch from inside a kernel is not emulated");
  call_ = &call;
  body_ = &body;
  gridDim = call.grid;
  blockDim = call.block;
  ++stats_.launches;
  std::vector<unsigned> order(size_t{call.grid.x} * call.grid.y * call.grid.z);
  std::iota(order.begin(), order.end(), 0u);
  if (policy_ == SchedulePolicy::kReverse) std::reverse(order.begin(), order.end());
  if (policy_ == SchedulePolicy::kRandom) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[Random() % i]);
  }
  for (const unsigned i : order) {
    RunBlock({i % call.grid.x, i / call.grid.x % call.grid.y, i / (call.grid.x * call.grid.y)});
  }
  TsanAcquire(&end_);
  EndGridMemory();
}

}  // namespace executor
