#include "kernels/cuda/cuda_stream.h"

#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {

absl::StatusOr<Stream> Stream::Create() {
  Stream stream;
  STRATA_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking));
  return stream;
}

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Stream::Synchronize() const {
  STRATA_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_));
  return absl::OkStatus();
}

absl::StatusOr<Event> Event::Create(Wait wait) {
  Event event;
  unsigned flags = cudaEventDisableTiming;
  if (wait == Wait::kSleep) flags |= cudaEventBlockingSync;
  STRATA_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event.event_, flags));
  return event;
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

absl::Status Event::Record(const Stream& stream) const {
  STRATA_CUDA_RETURN_IF_ERROR(cudaEventRecord(event_, stream.get()));
  return absl::OkStatus();
}

absl::Status Event::Delay(const Stream& stream) const {
  STRATA_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream.get(), event_, 0));
  return absl::OkStatus();
}

absl::Status Event::Synchronize() const {
  STRATA_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(event_));
  return absl::OkStatus();
}

}  // namespace strata::cuda
