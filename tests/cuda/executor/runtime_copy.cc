// cudaMemcpy and cudaMemset. Stricter than unified addressing, on purpose: a copy's kind must say
// where its two ends lie.

#include <cstring>
#include <memory>
#include <vector>

#include "tests/cuda/executor/runtime.h"
#include "tests/cuda/executor/scheduler.h"

namespace executor {
namespace {

bool Holds(const Allocations& allocations, const void* p, size_t bytes) {
  const auto* found = FindAllocation(allocations, p);
  return found != nullptr &&
         static_cast<const char*>(p) + bytes <= found->first + found->second.bytes;
}

// A row or several of a pitch; plain copies are one row.
struct CopyShape {
  size_t width, height, to_pitch, from_pitch;
  size_t ToExtent() const { return height == 0 ? 0 : (height - 1) * to_pitch + width; }
  size_t FromExtent() const { return height == 0 ? 0 : (height - 1) * from_pitch + width; }
};

void CopyRows(void* to, const void* from, const CopyShape& shape) {
  for (size_t y = 0; y < shape.height; ++y) {
    std::memcpy(static_cast<char*>(to) + y * shape.to_pitch,
                static_cast<const char*>(from) + y * shape.from_pitch, shape.width);
  }
}

bool KindFits(const Runtime& runtime, const void* to, const void* from, const CopyShape& shape,
              cudaMemcpyKind kind) {
  const bool to_device = FindAllocation(runtime.device, to) != nullptr;
  const bool from_device = FindAllocation(runtime.device, from) != nullptr;
  if (to_device && !Holds(runtime.device, to, shape.ToExtent())) return false;
  if (from_device && !Holds(runtime.device, from, shape.FromExtent())) return false;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t Copy(ApiCall& call, void* to, const void* from, const CopyShape& shape,
                 cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
  if (call.refused()) return call.refusal();
  Runtime& runtime = call.runtime();
  Stream* stream = FindStream(runtime, handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (shape.width == 0 || shape.height == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr || !KindFits(runtime, to, from, shape, kind)) {
    return call.Return(cudaErrorInvalidValue);
  }
  if (FindAllocation(runtime.device, from) != nullptr &&
      FindAllocation(runtime.device, to) == nullptr) {
    Scheduler::Get().stats().bytes_to_host += shape.width * shape.height;
  }
  const auto is_pageable = [&runtime](const void* p) {
    return FindAllocation(runtime.device, p) == nullptr &&
           FindAllocation(runtime.pinned, p) == nullptr;
  };
  // Pageable memory, as documented: a source is staged before the call returns, a destination is
  // written.
  auto source = std::make_shared<std::vector<char>>();
  if (runtime.lazy && is_pageable(from)) {
    const auto* bytes = static_cast<const char*>(from);
    source->assign(bytes, bytes + shape.FromExtent());
  }
  Enqueue(runtime, call.lock(), stream,
          {[&runtime, to, from, shape, source] {
             const DeviceView view(runtime);
             CopyRows(to, source->empty() ? from : source->data(), shape);
           },
           false, nullptr, 0});
  if (wait || is_pageable(to)) Drain(runtime, call.lock(), stream);
  return cudaSuccess;
}

cudaError_t Set(ApiCall& call, void* to, int value, size_t bytes, cudaStream_t handle) {
  if (call.refused()) return call.refusal();
  Runtime& runtime = call.runtime();
  Stream* stream = FindStream(runtime, handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!Holds(runtime.device, to, bytes) && !Holds(runtime.pinned, to, bytes)) {
    return call.Return(cudaErrorInvalidValue);
  }
  Enqueue(runtime, call.lock(), stream,
          {[&runtime, to, value, bytes] {
             const DeviceView view(runtime);
             std::memset(to, value, bytes);
           },
           false, nullptr, 0});
  return cudaSuccess;
}

}  // namespace
}  // namespace executor

using executor::ApiCall;

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ApiCall call("cudaMemcpyAsync");
  return executor::Copy(call, to, from, {bytes, 1, bytes, bytes}, kind, stream, false);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  ApiCall call("cudaMemcpy");
  return executor::Copy(call, to, from, {bytes, 1, bytes, bytes}, kind, nullptr, true);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  ApiCall call("cudaMemcpy2DAsync");
  if (!call.refused() && (width > to_pitch || width > from_pitch)) {
    return call.Return(cudaErrorInvalidPitchValue);
  }
  return executor::Copy(call, to, from, {width, height, to_pitch, from_pitch}, kind, stream, false);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  ApiCall call("cudaMemsetAsync");
  return executor::Set(call, to, value, bytes, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  ApiCall call("cudaMemset");
  return executor::Set(call, to, value, bytes, nullptr);
}

}  // extern "C"
