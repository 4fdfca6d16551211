#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/buffer.h"
#include "kernels/cuda/cuda_stream.h"

namespace strata::cuda {

// Of parts of one buffer of device memory.
inline constexpr size_t kDeviceAlignment = 256;
constexpr size_t AlignDevice(size_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// One GPU as a backend uses it: which it is, its compute stream, its memory, and the first thing
// that went wrong on the stream since somebody asked. Shared by the parts of one backend, and by
// the buffers taken from it.
class CudaDevice {
 public:
  // The oldest compute capability the kernels run on: cp.async and the integer MMA need it.
  static constexpr int kMajorMin = 8;

  // FailedPrecondition when there is no driver, no such device, or it is too old.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Open(int index);

  int index() const { return index_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  const Stream& stream() const { return stream_; }

  // Makes this the calling thread's device. CUDA keeps one a thread, so every call that may come
  // on a thread of its own begins with it.
  absl::Status Bind() const;

  // Zero-filled device memory, pinned host memory at one address for both. Any thread.
  // ResourceExhausted saying what was asked and what is free.
  static absl::StatusOr<Buffer> AllocateDevice(std::shared_ptr<CudaDevice> device, size_t bytes);
  static absl::StatusOr<Buffer> AllocatePinned(std::shared_ptr<CudaDevice> device, size_t bytes);
  absl::StatusOr<uint64_t> FreeBytes() const;

  // Keeps the first error of calls that return nothing. Engine thread.
  void Note(cudaError_t error, absl::string_view call);
  void Note(absl::Status status) { noted_.Update(std::move(status)); }
  // Scratch that recorded calls point into has moved: recordings are void. Engine thread.
  void NoteMoved() { ++generation_; }
  uint64_t generation() const { return generation_; }

  // Waits for the compute stream; what was noted since the last call, or what the wait says.
  absl::Status Synchronize();

 private:
  CudaDevice() = default;

  int index_ = 0;
  std::string name_;
  Stream stream_;
  absl::Status noted_;
  uint64_t generation_ = 0;
};

}  // namespace strata::cuda
