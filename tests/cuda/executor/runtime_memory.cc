// cudaMalloc, cudaHostAlloc and their kin. Device memory is NaN when allocated, has guard zones,
// and is out of the host's reach under AddressSanitizer.

#include <cstdlib>
#include <cstring>

#include "tests/cuda/executor/rendezvous.h"
#include "tests/cuda/executor/runtime.h"
#include "tests/cuda/executor/sanitizers.h"

namespace executor {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kDeviceGuardBytes = 256;
constexpr char kGuardByte = static_cast<char>(0xa5);
int views = 0;  // DeviceViews alive; under the lock

void CheckDeviceZone(const char* zone, size_t bytes, const char* data, const char* where) {
  for (size_t i = 0; i < bytes; ++i) {
    if (zone[i] != kGuardByte) {
      Fail({"device memory", 0}, "a write outside the device allocation %p, %s it",
           static_cast<const void*>(data), where);
    }
  }
}

void CheckZones(const char* data, const Allocation& allocation) {
  CheckDeviceZone(allocation.base, kDeviceGuardBytes, data, "before");
  CheckDeviceZone(data + allocation.bytes, kDeviceGuardBytes, data, "behind");
}

cudaError_t AllocateDevice(ApiCall& call, void** out, size_t bytes) {
  Runtime& runtime = call.runtime();
  if (out == nullptr) return call.Return(cudaErrorInvalidValue);
  if (CapturesHere(runtime)) return call.Return(cudaErrorStreamCaptureUnsupported);
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* base = nullptr;
  if (bytes > runtime.device_total - runtime.device_used ||
      posix_memalign(&base, kAlignment, bytes + 2 * kDeviceGuardBytes) != 0) {
    return call.Return(cudaErrorMemoryAllocation);
  }
  char* data = static_cast<char*>(base) + kDeviceGuardBytes;
  std::memset(base, kGuardByte, kDeviceGuardBytes);
  std::memset(data, 0xff, bytes);
  std::memset(data + bytes, kGuardByte, kDeviceGuardBytes);
  AsanPoison(base, bytes + 2 * kDeviceGuardBytes);
  runtime.device[data] = {bytes, static_cast<char*>(base), false};
  runtime.device_used += bytes;
  *out = data;
  return cudaSuccess;
}

cudaError_t FreeDevice(Runtime& runtime, void* p) {
  const auto found = runtime.device.find(static_cast<char*>(p));
  if (found == runtime.device.end()) return cudaErrorInvalidValue;
  const Allocation allocation = found->second;
  AsanUnpoison(allocation.base, allocation.bytes + 2 * kDeviceGuardBytes);
  CheckZones(found->first, allocation);
  runtime.device_used -= allocation.bytes;
  runtime.device.erase(found);
  std::free(allocation.base);
  return cudaSuccess;
}

}  // namespace

const Allocations::value_type* FindAllocation(const Allocations& allocations, const void* p) {
  const auto* address = static_cast<const char*>(p);
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  --next;
  return address < next->first + next->second.bytes ? &*next : nullptr;
}

DeviceView::DeviceView(const Runtime& runtime) : runtime_(runtime) {
  if (views++ > 0) return;
  for (const auto& [data, allocation] : runtime_.device) AsanUnpoison(data, allocation.bytes);
}

DeviceView::~DeviceView() {
  if (--views > 0) return;
  for (const auto& [data, allocation] : runtime_.device) AsanPoison(data, allocation.bytes);
}

void CheckGuardZones(const Runtime& runtime) {
#ifndef EXECUTOR_ASAN  // which sees such a write itself, and may not read the zones here
  for (const auto& [data, allocation] : runtime.device) CheckZones(data, allocation);
#endif
}

}  // namespace executor

using executor::ApiCall;
using executor::FindAllocation;

extern "C" {

cudaError_t cudaMalloc(void** out, size_t bytes) {
  ApiCall call("cudaMalloc");
  return call.refused() ? call.refusal() : executor::AllocateDevice(call, out, bytes);
}

cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t) {
  ApiCall call("cudaMallocAsync");
  return call.refused() ? call.refusal() : executor::AllocateDevice(call, out, bytes);
}

cudaError_t cudaFree(void* p) {
  ApiCall call("cudaFree");
  if (call.refused()) return call.refusal();
  if (p == nullptr) return cudaSuccess;
  if (executor::CapturesHere(call.runtime())) {
    return call.Return(cudaErrorStreamCaptureUnsupported);
  }
  executor::DrainAll(call.runtime(), call.lock());
  return call.Return(executor::FreeDevice(call.runtime(), p));
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t handle) {
  ApiCall call("cudaFreeAsync");
  if (call.refused()) return call.refusal();
  executor::Runtime& runtime = call.runtime();
  executor::Stream* stream = executor::FindStream(runtime, handle);
  if (stream == nullptr) return call.Return(cudaErrorInvalidResourceHandle);
  if (runtime.device.count(static_cast<char*>(p)) == 0) return call.Return(cudaErrorInvalidValue);
  executor::Enqueue(runtime, call.lock(), stream,
                    {[&runtime, p] { executor::FreeDevice(runtime, p); }, false, nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  ApiCall call("cudaHostAlloc");
  if (call.refused()) return call.refusal();
  if (out == nullptr) return call.Return(cudaErrorInvalidValue);
  if (posix_memalign(out, 4096, bytes > 0 ? bytes : 1) != 0) {
    return call.Return(cudaErrorMemoryAllocation);
  }
  auto* data = static_cast<char*>(*out);
  std::memset(data, 0xff, bytes);
  call.runtime().pinned[data] = {bytes, data, false};
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }

cudaError_t cudaFreeHost(void* p) {
  ApiCall call("cudaFreeHost");
  if (call.refused()) return call.refusal();
  if (p == nullptr) return cudaSuccess;
  executor::DrainAll(call.runtime(), call.lock());
  const auto found = call.runtime().pinned.find(static_cast<char*>(p));
  if (found == call.runtime().pinned.end() || found->second.registered) {
    return call.Return(cudaErrorInvalidValue);
  }
  call.runtime().pinned.erase(found);
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  ApiCall call("cudaHostRegister");
  if (call.refused()) return call.refusal();
  if (p == nullptr || bytes == 0) return call.Return(cudaErrorInvalidValue);
  auto& pinned = call.runtime().pinned;
  const auto* begin = static_cast<const char*>(p);
  const auto next = pinned.lower_bound(begin);
  if (FindAllocation(pinned, p) != nullptr ||
      (next != pinned.end() && next->first < begin + bytes)) {
    return call.Return(cudaErrorHostMemoryAlreadyRegistered);
  }
  pinned[begin] = {bytes, nullptr, true};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* p) {
  ApiCall call("cudaHostUnregister");
  if (call.refused()) return call.refusal();
  executor::DrainAll(call.runtime(), call.lock());
  const auto found = call.runtime().pinned.find(static_cast<char*>(p));
  if (found == call.runtime().pinned.end() || !found->second.registered) {
    return call.Return(cudaErrorHostMemoryNotRegistered);
  }
  call.runtime().pinned.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  ApiCall call("cudaHostGetDevicePointer");
  if (call.refused()) return call.refusal();
  if (FindAllocation(call.runtime().pinned, host) == nullptr) {
    return call.Return(cudaErrorInvalidValue);
  }
  *device = host;  // unified addressing
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  ApiCall call("cudaPointerGetAttributes");
  if (call.refused()) return call.refusal();
  *attributes = {};
  auto* pointer = const_cast<void*>(p);
  if (FindAllocation(call.runtime().device, p) != nullptr) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = pointer;
  } else if (FindAllocation(call.runtime().pinned, p) != nullptr) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = attributes->hostPointer = pointer;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->hostPointer = pointer;
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  ApiCall call("cudaMemGetInfo");
  if (call.refused()) return call.refusal();
  *total = call.runtime().device_total;
  *free_bytes = *total - call.runtime().device_used;
  return cudaSuccess;
}

}  // extern "C"
