#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "kernels/recorder.h"

namespace strata {

// One device's memory, and the order of what is done to it. A device may run behind the host: the
// calls of LinearOps and AttentionBackend only enqueue, in order, and the host sees their results
// after Download or Synchronize. On the host everything is done when a call returns.
//
// Pointers into a device buffer may be handed to this backend's kernels and copies; only where
// host_accessible() may the host read or write through them. Pinned buffers are read and written by
// both at one address. Allocation: any thread. The others: engine thread.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Zero-filled, aligned to 256 bytes. ResourceExhausted saying what was asked and what is free.
  virtual absl::StatusOr<Buffer> AllocateDevice(size_t bytes) = 0;
  virtual absl::StatusOr<Buffer> AllocatePinned(size_t bytes) = 0;
  // Bytes of device memory that may still be taken, and what bounds them. On the host, what
  // AvailableMemory says.
  struct Available {
    uint64_t bytes = 0;
    std::string bound_by;
  };
  virtual absl::StatusOr<Available> AvailableDevice() const = 0;

  // Device pointers are host pointers.
  virtual bool host_accessible() const = 0;

  // Copies to the device, after what was enqueued before; `host` may be reused on return.
  virtual absl::Status Upload(const void* host, size_t bytes, void* device) = 0;
  // Waits for everything enqueued before, then copies. Reports what went wrong in it.
  virtual absl::Status Download(const void* device, size_t bytes, void* host) = 0;
  // Waits for everything enqueued. Reports what went wrong in it.
  virtual absl::Status Synchronize() = 0;

  // Null where enqueuing a call costs nothing. Must go before the buffers that its recordings use.
  virtual std::unique_ptr<Recorder> MakeRecorder() { return nullptr; }
};

// The host as its own device.
std::unique_ptr<DeviceMemory> MakeHostMemory();
// One for whoever has no backend at hand; never destroyed.
DeviceMemory* HostMemory();

// Constant floats of a model on its device.
class DeviceFloats {
 public:
  DeviceFloats() = default;
  static absl::StatusOr<DeviceFloats> Upload(absl::Span<const float> values, DeviceMemory* memory);

  // Null when there are none.
  const float* data() const { return reinterpret_cast<const float*>(buffer_.data()); }
  size_t bytes() const { return buffer_.size(); }

 private:
  Buffer buffer_;
};

}  // namespace strata
