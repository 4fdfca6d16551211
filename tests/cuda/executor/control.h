#pragma once

// What tests ask of the executor. Any thread; takes the runtime's lock.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace executor {

// The order in which ready threads and blocks run: "forward", "reverse" or "random:SEED". False
// when the text is none of these.
bool SetSchedule(const std::string& schedule);

// "eager": work runs when it is enqueued. "lazy:SEED": as late as synchronization allows, streams
// interleaved at random, so that a missing wait is seen. False when the text is neither.
bool SetStreams(const std::string& mode);
std::string GetStreams();

// The call named, e.g. "cudaMalloc" or "cudaLaunchKernel", returns `error` once, after `skip` calls
// that succeed, and does nothing else.
void FailNext(const std::string& call, cudaError_t error, int skip = 0);
void ClearFailures();

// Without one every call returns cudaErrorInsufficientDriver, as cudart does with no driver
// installed.
void SetDriverPresent(bool present);

// Bytes of device memory there are; 4 GiB at start.
void SetDeviceMemory(size_t bytes);

// What is alive: all 0 when nothing leaks.
struct LiveObjects {
  size_t device_allocations = 0;
  size_t device_bytes = 0;
  size_t pinned_allocations = 0;  // cudaHostAlloc and cudaHostRegister
  size_t streams = 0;
  size_t events = 0;
  size_t graphs = 0;  // and instances of them
};
LiveObjects CountLive();

// Since the process began, or since ResetStats.
struct Stats {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  uint64_t threads = 0;
  uint64_t switches = 0;
  uint64_t barriers = 0;
  uint64_t warp_collectives = 0;
  uint64_t bytes_to_host = 0;  // copied from device memory
};
Stats GetStats();
void ResetStats();

// The largest shapes that a kernel was launched in.
struct KernelUse {
  const void* function;
  uint64_t launches;
  unsigned threads;  // of a block
  size_t dynamic_shared_bytes;
};
std::vector<KernelUse> KernelUses();

}  // namespace executor
