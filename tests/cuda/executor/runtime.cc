#include "tests/cuda/executor/runtime.h"

#include <algorithm>
#include <cstdlib>

#include "tests/cuda/executor/scheduler.h"

namespace executor {

Runtime& Runtime::Get() {
  static auto* runtime = new Runtime;  // never destroyed: buffers may be freed at exit
  return *runtime;
}

ApiCall::ApiCall(const char* name) : runtime_(Runtime::Get()), lock_(runtime_.mutex) {
  if (!runtime_.driver_present) {
    refusal_ = Return(cudaErrorInsufficientDriver);
    return;
  }
  const auto found = runtime_.failures.find(name);
  if (found == runtime_.failures.end() || found->second.empty()) return;
  Failure& next = found->second.front();
  if (next.skip-- > 0) return;
  refusal_ = Return(next.error);
  found->second.pop_front();
}

cudaError_t ApiCall::Return(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) runtime_.last_error = error;
  return error;
}

Stream* FindStream(Runtime& runtime, cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return &runtime.default_stream;
  }
  auto* stream = reinterpret_cast<Stream*>(handle);
  const auto found = std::find(runtime.streams.begin(), runtime.streams.end(), stream);
  return found == runtime.streams.end() ? nullptr : stream;
}

namespace {

// Runs the stream's next operation if it may run now.
bool Step(Runtime& runtime, Lock& lock, Stream* stream) {
  if (stream->busy || stream->queue.empty()) return false;
  const Operation& next = stream->queue.front();
  if (next.wait && next.wait->fired < next.wait_count) return false;
  const Operation operation = std::move(stream->queue.front());
  if (operation.unlocked) {
    // The operation stays at the head of the queue meanwhile: the stream is not drained before it
    // ends.
    stream->busy = true;
    lock.unlock();
    operation.run();
    lock.lock();
    stream->busy = false;
    runtime.changed.notify_all();
  } else if (operation.run) {
    operation.run();
  }
  stream->queue.pop_front();
  return true;
}

}  // namespace

void RunUntil(Runtime& runtime, Lock& lock, const std::function<bool()>& done) {
  while (!done()) {
    runtime.random = runtime.random * 6364136223846793005ull + 1442695040888963407ull;
    const size_t count = runtime.streams.size();
    const size_t start = static_cast<size_t>(runtime.random >> 33) % count;
    bool moved = false, busy = false;
    for (size_t i = 0; i < count && !moved; ++i) {
      Stream* stream = runtime.streams[(start + i) % count];
      moved = Step(runtime, lock, stream);
      if (moved) break;
      busy = busy || stream->busy;
    }
    if (moved) continue;
    if (!busy) Fail({"streams", 0}, "deadlock: every stream waits for an event that never fires");
    runtime.changed.wait(lock);
  }
}

void Drain(Runtime& runtime, Lock& lock, const Stream* stream) {
  RunUntil(runtime, lock, [stream] { return stream->queue.empty(); });
}

void DrainAll(Runtime& runtime, Lock& lock) {
  RunUntil(runtime, lock, [&runtime] {
    return std::all_of(runtime.streams.begin(), runtime.streams.end(),
                       [](const Stream* stream) { return stream->queue.empty(); });
  });
}

void Enqueue(Runtime& runtime, Lock& lock, Stream* stream, Operation operation) {
  if (stream->capture != nullptr) {
    // Host functions and events across streams are beyond this executor's graphs.
    if (operation.unlocked || operation.wait != nullptr) stream->capture->invalid = true;
    stream->capture->operations.push_back(std::move(operation));
    return;
  }
  stream->queue.push_back(std::move(operation));
  if (!runtime.lazy) Drain(runtime, lock, stream);
}

bool SetSchedule(const std::string& schedule) {
  const Lock lock(Runtime::Get().mutex);
  Scheduler& scheduler = Scheduler::Get();
  if (schedule == "forward") {
    scheduler.SetPolicy(SchedulePolicy::kForward, 0);
  } else if (schedule == "reverse") {
    scheduler.SetPolicy(SchedulePolicy::kReverse, 0);
  } else if (schedule.rfind("random:", 0) == 0) {
    scheduler.SetPolicy(SchedulePolicy::kRandom, std::strtoull(&schedule[7], nullptr, 10));
  } else {
    return false;
  }
  return true;
}

bool SetStreams(const std::string& mode) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  const bool lazy = mode.rfind("lazy:", 0) == 0;
  if (!lazy && mode != "eager") return false;
  DrainAll(runtime, lock);
  runtime.lazy = lazy;
  runtime.stream_mode = mode;
  if (lazy) runtime.random = std::strtoull(&mode[5], nullptr, 10) * 2654435761u + 1;
  return true;
}

std::string GetStreams() {
  const Lock lock(Runtime::Get().mutex);
  return Runtime::Get().stream_mode;
}

void FailNext(const std::string& call, cudaError_t error, int skip) {
  const Lock lock(Runtime::Get().mutex);
  Runtime::Get().failures[call].push_back({skip, error});
}

void ClearFailures() {
  const Lock lock(Runtime::Get().mutex);
  Runtime::Get().failures.clear();
}

void SetDriverPresent(bool present) {
  const Lock lock(Runtime::Get().mutex);
  Runtime::Get().driver_present = present;
}

void SetDeviceMemory(size_t bytes) {
  const Lock lock(Runtime::Get().mutex);
  Runtime::Get().device_total = bytes;
}

LiveObjects CountLive() {
  Runtime& runtime = Runtime::Get();
  const Lock lock(runtime.mutex);
  LiveObjects live;
  live.device_allocations = runtime.device.size();
  live.device_bytes = runtime.device_used;
  live.pinned_allocations = runtime.pinned.size();
  live.streams = runtime.streams.size() - 1;
  live.events = runtime.events.size();
  live.graphs = runtime.graphs.size();
  return live;
}

Stats GetStats() {
  const Lock lock(Runtime::Get().mutex);
  return Scheduler::Get().stats();
}

void ResetStats() {
  const Lock lock(Runtime::Get().mutex);
  Scheduler::Get().stats() = {};
}

std::vector<KernelUse> KernelUses() {
  const Lock lock(Runtime::Get().mutex);
  std::vector<KernelUse> uses;
  for (const auto& [function, use] : Runtime::Get().kernel_uses) uses.push_back(use);
  return uses;
}

}  // namespace executor
