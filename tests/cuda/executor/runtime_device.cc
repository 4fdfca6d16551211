// Devices, attributes and errors. The one device here claims the limits of compute capability 9.0.

#include <cstdio>

#include "tests/cuda/executor/runtime.h"

using executor::ApiCall;

namespace {

constexpr int kMaxSharedBytes = 227 << 10;  // of a block, after cudaFuncSetAttribute
constexpr int kMultiprocessors = 4;

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const ErrorText& TextOf(cudaError_t error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) return known;
  }
  static constexpr ErrorText kUnknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  return kUnknown;
}

int AttributeOf(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrComputeCapabilityMinor:
      return 0;
    case cudaDevAttrMultiProcessorCount:
      return kMultiprocessors;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return kMaxSharedBytes;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 48 << 10;
    case cudaDevAttrMaxThreadsPerBlock:
      return 1024;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
      return 1;
    default:
      return -1;
  }
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  ApiCall call("cudaGetDeviceCount");
  *count = call.refused() ? 0 : 1;
  return call.refusal();
}

cudaError_t cudaSetDevice(int device) {
  ApiCall call("cudaSetDevice");
  if (call.refused()) return call.refusal();
  return call.Return(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  ApiCall call("cudaGetDevice");
  *device = 0;
  return call.refusal();
}

cudaError_t cudaDriverGetVersion(int* version) {
  const std::unique_lock<std::mutex> lock(executor::Runtime::Get().mutex);
  *version = executor::Runtime::Get().driver_present ? CUDART_VERSION : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ApiCall call("cudaGetDeviceProperties");
  if (call.refused()) return call.refusal();
  if (device != 0) return call.Return(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Emulated device");
  properties->totalGlobalMem = call.runtime().device_total;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = kMaxSharedBytes;
  properties->sharedMemPerMultiprocessor = kMaxSharedBytes + 1024;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->unifiedAddressing = properties->canMapHostMemory = 1;
  properties->asyncEngineCount = 2;
  properties->concurrentKernels = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  ApiCall call("cudaDeviceGetAttribute");
  if (call.refused()) return call.refusal();
  if (device != 0) return call.Return(cudaErrorInvalidDevice);
  *value = AttributeOf(attribute);
  return call.Return(*value >= 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  ApiCall call("cudaFuncSetAttribute");
  if (call.refused()) return call.refusal();
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > kMaxSharedBytes) return call.Return(cudaErrorInvalidValue);
  call.runtime().max_dynamic_shared[function] = value;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const std::unique_lock<std::mutex> lock(executor::Runtime::Get().mutex);
  const cudaError_t error = executor::Runtime::Get().last_error;
  executor::Runtime::Get().last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const std::unique_lock<std::mutex> lock(executor::Runtime::Get().mutex);
  return executor::Runtime::Get().last_error;
}

const char* cudaGetErrorName(cudaError_t error) { return TextOf(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return TextOf(error).text; }

}  // extern "C"
