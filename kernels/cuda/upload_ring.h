#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/cuda_device.h"

namespace strata::cuda {

// Small host arrays (page lists, targets, positions) on their way to kernels of one stream: copied
// to pinned memory, from there to device memory in stream order, one copy a Put. Two halves take
// turns; a half is written again once the copies out of it are done, which by then they are. Engine
// thread.
class UploadRing {
 public:
  // For kernels of the compute stream.
  explicit UploadRing(std::shared_ptr<CudaDevice> device)
      : device_(std::move(device)), stream_(&device_->stream()) {}
  // For kernels of `stream`, which must exist when Reserve is called and outlive the ring's use.
  UploadRing(std::shared_ptr<CudaDevice> device, const Stream* stream)
      : device_(std::move(device)), stream_(stream) {}

  // Makes room for Puts of so many bytes together between two uses of a half. Waits for the device
  // where it must grow. At start-up; Put grows it too when it must.
  absl::Status Reserve(size_t bytes);

  // One array of a Put.
  struct Part {
    const void* data = nullptr;
    size_t bytes = 0;
  };
  // Copies the parts, each to a multiple of 256 bytes; addresses[i] is where part i will lie for
  // kernels enqueued after this. They hold until as much again was Put.
  absl::Status Put(absl::Span<const Part> parts, absl::Span<const void*> addresses);

  template <typename T>
  absl::StatusOr<const T*> Put(absl::Span<const T> values) {
    const Part part = {values.data(), values.size() * sizeof(T)};
    const void* address = nullptr;
    if (absl::Status status = Put({&part, 1}, {&address, 1}); !status.ok()) return status;
    return static_cast<const T*>(address);
  }

 private:
  absl::Status TurnOver();

  const std::shared_ptr<CudaDevice> device_;
  const Stream* const stream_;
  Buffer pinned_;
  Buffer memory_;
  size_t half_bytes_ = 0;
  size_t used_ = 0;  // of the current half
  int half_ = 0;
  Event passed_[2];  // the copies out of that half are done
};

}  // namespace strata::cuda
