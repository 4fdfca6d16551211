// Streams, events, host functions and launches.

#include <algorithm>

#include "tests/cuda/executor/launch.h"
#include "tests/cuda/executor/runtime.h"
#include "tests/cuda/executor/scheduler.h"

namespace executor {
namespace {

constexpr size_t kDefaultDynamicShared = 48 << 10;  // more needs cudaFuncSetAttribute

bool ShapeFits(const KernelCall& call) {
  const auto [bx, by, bz] = call.block;
  const auto [gx, gy, gz] = call.grid;
  const size_t threads = size_t{bx} * by * bz;
  return threads > 0 && threads <= kMaxBlockThreads && bz <= 64 && gx > 0 && gx <= 0x7fffffff &&
         gy > 0 && gy <= 65535 && gz > 0 && gz <= 65535;
}

void NoteUse(Runtime& runtime, const KernelCall& call) {
  KernelUse& use = runtime.kernel_uses[call.function];
  use.function = call.function;
  ++use.launches;
  use.threads = std::max(use.threads, call.block.x * call.block.y * call.block.z);
  use.dynamic_shared_bytes = std::max(use.dynamic_shared_bytes, call.dynamic_shared_bytes);
}

std::shared_ptr<Event> FindEvent(Runtime& runtime, cudaEvent_t handle) {
  const auto found = runtime.events.find(handle);
  return found == runtime.events.end() ? nullptr : found->second;
}

}  // namespace

cudaError_t LaunchKernel(const KernelCall& kernel, cudaStream_t handle,
                         std::function<void()> body) {
  ApiCall call("cudaLaunchKernel");
  if (call.refused()) return call.refusal();
  Runtime& runtime = call.runtime();
  Stream* stream = FindStream(runtime, handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (!ShapeFits(kernel)) return call.Return(cudaErrorInvalidConfiguration);
  const auto limit = runtime.max_dynamic_shared.find(kernel.function);
  const size_t max_shared = limit == runtime.max_dynamic_shared.end()
                                ? kDefaultDynamicShared
                                : static_cast<size_t>(limit->second);
  if (kernel.dynamic_shared_bytes > max_shared) return call.Return(cudaErrorInvalidValue);
  NoteUse(runtime, kernel);
  Enqueue(runtime, call.lock(), stream,
          {[&runtime, kernel, body = std::move(body)] {
             const DeviceView view(runtime);
             Scheduler::Get().RunGrid(kernel, body);
             CheckGuardZones(runtime);
           },
           false, nullptr, 0});
  return cudaSuccess;
}

}  // namespace executor

using executor::ApiCall;
using executor::Event;
using executor::FindEvent;
using executor::Stream;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  ApiCall call("cudaStreamCreateWithFlags");
  if (call.refused()) return call.refusal();
  auto* stream = new Stream;
  call.runtime().streams.push_back(stream);
  *out = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, 0); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  ApiCall call("cudaStreamDestroy");
  if (call.refused()) return call.refusal();
  Stream* stream = FindStream(call.runtime(), handle);
  if (stream == nullptr || stream == &call.runtime().default_stream) {
    return call.Return(cudaErrorInvalidResourceHandle);
  }
  Drain(call.runtime(), call.lock(), stream);
  auto& streams = call.runtime().streams;
  streams.erase(std::find(streams.begin(), streams.end(), stream));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ApiCall call("cudaStreamSynchronize");
  if (call.refused()) return call.refusal();
  const Stream* stream = FindStream(call.runtime(), handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return call.Return(cudaErrorStreamCaptureUnsupported);
  }
  Drain(call.runtime(), call.lock(), stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  ApiCall call("cudaStreamQuery");
  if (call.refused()) return call.refusal();
  const Stream* stream = FindStream(call.runtime(), handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  ApiCall call("cudaDeviceSynchronize");
  if (call.refused()) return call.refusal();
  DrainAll(call.runtime(), call.lock());
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  ApiCall call("cudaLaunchHostFunc");
  if (call.refused()) return call.refusal();
  Stream* stream = FindStream(call.runtime(), handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  executor::Enqueue(call.runtime(), call.lock(), stream,
                    {[function, argument] { function(argument); }, true, nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  ApiCall call("cudaEventCreateWithFlags");
  if (call.refused()) return call.refusal();
  auto event = std::make_shared<Event>();
  *out = reinterpret_cast<cudaEvent_t>(event.get());
  call.runtime().events[*out] = std::move(event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  ApiCall call("cudaEventDestroy");
  if (call.refused()) return call.refusal();
  const bool erased = call.runtime().events.erase(handle) > 0;
  return call.Return(erased ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  ApiCall call("cudaEventRecord");
  if (call.refused()) return call.refusal();
  const auto event = FindEvent(call.runtime(), handle);
  Stream* stream = FindStream(call.runtime(), stream_handle);
  if (event == nullptr || stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;  // CUDA could; this executor's graphs cannot
    return call.Return(cudaErrorStreamCaptureUnsupported);
  }
  const uint64_t count = ++event->recorded;
  executor::Enqueue(call.runtime(), call.lock(), stream,
                    {[event, count] {
                       event->fired = std::max(event->fired, count);
                       event->time = std::chrono::steady_clock::now();
                     },
                     false, nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  ApiCall call("cudaStreamWaitEvent");
  if (call.refused()) return call.refusal();
  const auto event = FindEvent(call.runtime(), event_handle);
  Stream* stream = FindStream(call.runtime(), handle);
  if (event == nullptr || stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  executor::Enqueue(call.runtime(), call.lock(), stream, {nullptr, false, event, event->recorded});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  ApiCall call("cudaEventQuery");
  if (call.refused()) return call.refusal();
  const auto event = FindEvent(call.runtime(), handle);
  if (event == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  return event->fired >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  ApiCall call("cudaEventSynchronize");
  if (call.refused()) return call.refusal();
  const auto event = FindEvent(call.runtime(), handle);
  if (event == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  const uint64_t count = event->recorded;
  RunUntil(call.runtime(), call.lock(), [event, count] { return event->fired >= count; });
  return cudaSuccess;
}

// Host time between the two: nothing here measures a device.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  ApiCall call("cudaEventElapsedTime");
  if (call.refused()) return call.refusal();
  const auto first = FindEvent(call.runtime(), begin), last = FindEvent(call.runtime(), end);
  if (first == nullptr || last == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (first->fired < first->recorded || last->fired < last->recorded) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return cudaSuccess;
}

}  // extern "C"
