#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace strata::cuda {

// A stream that does not wait for the default one. Move-only. Destroying it does not wait for its
// work: whoever owns buffers in use synchronizes first.
class Stream {
 public:
  Stream() = default;
  static absl::StatusOr<Stream> Create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  cudaStream_t get() const { return stream_; }
  absl::Status Synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream. Move-only.
class Event {
 public:
  // kSleep: a thread that waits gives its CPU away.
  enum class Wait { kSpin, kSleep };

  Event() = default;
  static absl::StatusOr<Event> Create(Wait wait);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  cudaEvent_t get() const { return event_; }
  absl::Status Record(const Stream& stream) const;
  // What is enqueued on `stream` from now on starts behind the latest Record; at once where there
  // was none.
  absl::Status Delay(const Stream& stream) const;
  // Waits until the stream has passed the latest Record; at once where there was none.
  absl::Status Synchronize() const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace strata::cuda
