#pragma once

// The fake CUDA runtime's state and the order in which streams run. The executor's inside:
// control.h is what tests use. Every API function holds the lock through ApiCall; kernels run under
// it, callbacks given to cudaLaunchHostFunc do not.

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/cuda/executor/control.h"

namespace executor {

struct Event {
  uint64_t recorded = 0, fired = 0;  // counts of cudaEventRecord, and of those reached
  std::chrono::steady_clock::time_point time;
};

struct Operation {
  std::function<void()> run;
  bool unlocked = false;        // a host function: runs without the lock
  std::shared_ptr<Event> wait;  // may run once this event fired `wait_count` times
  uint64_t wait_count = 0;
};

// What a stream captured, in order; also an instance of it, ready to be launched.
struct Graph {
  std::vector<Operation> operations;
  std::thread::id thread;  // that captures
  bool invalid = false;    // something was asked of the stream that a capture cannot hold
};

struct Stream {
  std::deque<Operation> queue;
  std::shared_ptr<Graph> capture;  // null: work runs
  bool busy = false;               // some thread is in its host function
};

// A piece of memory that the runtime knows: device memory, with guard zones, or pinned memory.
struct Allocation {
  size_t bytes = 0;
  char* base = nullptr;     // what to free; null for memory that the caller owns
  bool registered = false;  // cudaHostRegister's
};
using Allocations = std::map<const char*, Allocation>;

struct Failure {
  int skip = 0;
  cudaError_t error = cudaSuccess;
};

struct Runtime {
  static Runtime& Get();

  std::mutex mutex;
  std::condition_variable changed;  // a host function ended
  cudaError_t last_error = cudaSuccess;
  bool driver_present = true;
  std::map<std::string, std::deque<Failure>> failures;

  bool lazy = false;
  std::string stream_mode = "eager";
  uint64_t random = 1;
  Stream default_stream;
  std::vector<Stream*> streams{&default_stream};
  std::unordered_map<cudaEvent_t, std::shared_ptr<Event>> events;

  Allocations device, pinned;
  size_t device_total = size_t{4} << 30, device_used = 0;
  std::unordered_map<const void*, int> max_dynamic_shared;
  std::unordered_map<const void*, KernelUse> kernel_uses;
  std::unordered_map<const void*, std::shared_ptr<const Graph>> graphs;  // and instances of them
};

using Lock = std::unique_lock<std::mutex>;

// One call of the API: holds the lock, and says whether the call must fail at once.
class ApiCall {
 public:
  explicit ApiCall(const char* name);
  bool refused() const { return refusal_ != cudaSuccess; }
  cudaError_t refusal() const { return refusal_; }
  Lock& lock() { return lock_; }
  Runtime& runtime() { return runtime_; }
  // Notes the error for cudaGetLastError and returns it.
  cudaError_t Return(cudaError_t error);

 private:
  Runtime& runtime_;
  Lock lock_;
  cudaError_t refusal_ = cudaSuccess;
};

// Null for a handle that is no stream.
Stream* FindStream(Runtime& runtime, cudaStream_t handle);

// Puts work on a stream; an eager runtime also runs it.
void Enqueue(Runtime& runtime, Lock& lock, Stream* stream, Operation operation);

// Whether this thread captures a stream: CUDA then refuses to allocate, free or wait.
bool CapturesHere(const Runtime& runtime);

// Runs until `done` holds, streams interleaved at random. A deadlock of streams is a failure.
void RunUntil(Runtime& runtime, Lock& lock, const std::function<bool()>& done);
void Drain(Runtime& runtime, Lock& lock, const Stream* stream);
void DrainAll(Runtime& runtime, Lock& lock);

// The allocation that holds p, or null.
const Allocations::value_type* FindAllocation(const Allocations& allocations, const void* p);

// While one lives, host code may touch device memory; AddressSanitizer forbids it otherwise.
class DeviceView {
 public:
  explicit DeviceView(const Runtime& runtime);
  ~DeviceView();
  DeviceView(const DeviceView&) = delete;
  DeviceView& operator=(const DeviceView&) = delete;

 private:
  const Runtime& runtime_;
};

// Aborts when something wrote outside an allocation of device memory.
void CheckGuardZones(const Runtime& runtime);

}  // namespace executor
