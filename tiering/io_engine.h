#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/duration_histogram.h"

namespace strata {

// One read or write of a file. Owned by the caller, who leaves it alone until Complete is called.
class IoRequest {
 public:
  virtual ~IoRequest() = default;
  // Called once a submission, on a thread of the engine: bytes transferred (fewer than asked at the
  // end of a file or on a fault), or -errno. May submit the request again.
  virtual void Complete(int64_t result) = 0;

  bool write = false;
  uint64_t offset = 0;
  std::byte* data = nullptr;
  size_t bytes = 0;
  // The engine's, while submitted.
  IoRequest* next = nullptr;
  std::chrono::steady_clock::time_point submitted;
};

// Asynchronous I/O on one file. Submit from any thread; it queues and never waits. At most the
// engine's depth is in flight at the operating system; what is queued behind it is bounded by the
// number of requests there are (S3). Reads go before writes, but a write is always let through when
// none is in flight. S1: Complete is called exactly once a submission. The destructor waits for
// all.
class IoEngine {
 public:
  static constexpr size_t kAlignment = 4096;  // of offset, data and bytes

  struct Counters {
    uint64_t reads_submitted = 0, reads_completed = 0;
    uint64_t writes_submitted = 0, writes_completed = 0;
    // From submission to completion, waiting for a turn included; failed transfers too.
    DurationHistogram read_latency, write_latency;
  };

  virtual ~IoEngine() = default;
  virtual absl::string_view name() const = 0;

  void Submit(IoRequest* request);
  Counters counters() const;

 protected:
  virtual void DoSubmit(IoRequest* request) = 0;
  // Implementations report every result through this.
  void Finish(IoRequest* request, int64_t result);

 private:
  std::atomic<uint64_t> reads_submitted_{0}, reads_completed_{0};
  std::atomic<uint64_t> writes_submitted_{0}, writes_completed_{0};
  SharedDurationHistogram read_latency_, write_latency_;
};

// Requests waiting for their turn. The holder locks.
class IoQueue {
 public:
  explicit IoQueue(int32_t depth) : depth_(depth) {}
  void Push(IoRequest* request);
  // The next to go, or null when nothing waits or `depth` are in flight.
  IoRequest* Start();
  void Done(bool write);
  bool idle() const {
    return in_flight_ == 0 && reads_.first == nullptr && writes_.first == nullptr;
  }

 private:
  struct List {
    IoRequest* first = nullptr;
    IoRequest* last = nullptr;
  };
  static void Append(List* list, IoRequest* request);
  static IoRequest* PopFront(List* list);

  const int32_t depth_;
  int32_t in_flight_ = 0;
  int32_t writes_in_flight_ = 0;
  List reads_;
  List writes_;
};

// pread and pwrite on a few threads.
std::unique_ptr<IoEngine> MakeThreadIoEngine(int fd, int32_t depth);
// Unavailable, with the reason, where the kernel or a sandbox refuses io_uring.
absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringIoEngine(int fd, int32_t depth);

// "io_uring" or "threads", or "auto": the first of them that works. `fd` stays the caller's and
// must outlive the engine.
using IoEngineFactory = std::function<absl::StatusOr<std::unique_ptr<IoEngine>>(
    absl::string_view name, int fd, int32_t depth)>;
absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(absl::string_view name, int fd,
                                                       int32_t depth);

}  // namespace strata
