#include "kernels/cuda/upload_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {
namespace {

constexpr size_t kHalfBytesMin = size_t{64} << 10;

}  // namespace

absl::Status UploadRing::Reserve(size_t bytes) {
  const size_t half = std::max(AlignDevice(bytes), kHalfBytesMin);
  if (half <= half_bytes_) return absl::OkStatus();
  // Kernels may still read the old memory, and copies the old pinned memory.
  STRATA_RETURN_IF_ERROR(stream_->Synchronize());
  STRATA_ASSIGN_OR_RETURN(Buffer pinned, CudaDevice::AllocatePinned(device_, 2 * half));
  STRATA_ASSIGN_OR_RETURN(Buffer memory, CudaDevice::AllocateDevice(device_, 2 * half));
  for (Event& event : passed_) {
    STRATA_ASSIGN_OR_RETURN(event, Event::Create(Event::Wait::kSpin));
  }
  pinned_ = std::move(pinned);
  memory_ = std::move(memory);
  half_bytes_ = half;
  used_ = 0;
  half_ = 0;
  return absl::OkStatus();
}

absl::Status UploadRing::TurnOver() {
  STRATA_RETURN_IF_ERROR(passed_[half_].Record(*stream_));
  half_ = 1 - half_;
  used_ = 0;
  return passed_[half_].Synchronize();
}

absl::Status UploadRing::Put(absl::Span<const Part> parts, absl::Span<const void*> addresses) {
  size_t bytes = 0;
  for (const Part& part : parts) bytes += AlignDevice(part.bytes);
  if (bytes > half_bytes_) {
    STRATA_RETURN_IF_ERROR(Reserve(std::max(bytes, 2 * half_bytes_)));
  } else if (used_ + bytes > half_bytes_) {
    STRATA_RETURN_IF_ERROR(TurnOver());
  }
  const size_t first = half_ * half_bytes_ + used_;
  size_t at = first;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].bytes > 0) std::memcpy(pinned_.data() + at, parts[i].data, parts[i].bytes);
    addresses[i] = memory_.data() + at;
    at += AlignDevice(parts[i].bytes);
  }
  used_ += bytes;
  if (bytes == 0) return absl::OkStatus();
  STRATA_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(memory_.data() + first, pinned_.data() + first, bytes,
                                              cudaMemcpyHostToDevice, stream_->get()));
  return absl::OkStatus();
}

}  // namespace strata::cuda
