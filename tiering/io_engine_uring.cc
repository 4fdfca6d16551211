#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tiering/io_engine.h"

namespace strata {
namespace {

// Submissions come from any thread under the mutex; one thread of the engine's own waits for
// completions. The two rings of io_uring are independent, so it waits without the mutex.
class UringIoEngine final : public IoEngine {
 public:
  UringIoEngine(int fd, int32_t depth, const io_uring& ring)
      : fd_(fd), ring_(ring), queue_(depth), reaper_([this] { Loop(); }) {}

  ~UringIoEngine() override {
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [this] { return queue_.idle(); });
      // A no-op without a request tells the reaper to go.
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      STRATA_CHECK(sqe != nullptr);
      io_uring_prep_nop(sqe);
      io_uring_sqe_set_data(sqe, nullptr);
      FlushLocked();
    }
    reaper_.join();
    io_uring_queue_exit(&ring_);
  }

  absl::string_view name() const override { return "io_uring"; }

 private:
  void DoSubmit(IoRequest* request) override {
    const std::lock_guard lock(mutex_);
    queue_.Push(request);
    StartLocked();
  }

  void StartLocked() {
    bool started = false;
    while (IoRequest* request = queue_.Start()) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      STRATA_CHECK(sqe != nullptr);  // the ring has room for the queue's depth
      const auto bytes = static_cast<unsigned>(request->bytes);
      if (request->write) {
        io_uring_prep_write(sqe, fd_, request->data, bytes, request->offset);
      } else {
        io_uring_prep_read(sqe, fd_, request->data, bytes, request->offset);
      }
      io_uring_sqe_set_data(sqe, request);
      started = true;
    }
    if (started) FlushLocked();
  }

  // The kernel takes everything or says why for now it cannot (EAGAIN, EINTR, EBUSY).
  void FlushLocked() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      STRATA_CHECK(result >= 0 || result == -EAGAIN || result == -EINTR || result == -EBUSY);
      if (result < 0) std::this_thread::yield();
    }
  }

  void Loop() {
    while (true) {
      io_uring_cqe* cqe = nullptr;
      const int waited = io_uring_wait_cqe(&ring_, &cqe);
      if (waited == -EINTR || waited == -EAGAIN) continue;
      STRATA_CHECK(waited == 0);
      auto* request = static_cast<IoRequest*>(io_uring_cqe_get_data(cqe));
      const int64_t result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (request == nullptr) return;
      bool write = false;
      {
        // Taken for its ordering too: what the submitter wrote is visible from here on.
        const std::lock_guard lock(mutex_);
        write = request->write;
      }
      Finish(request, result);
      const std::lock_guard lock(mutex_);
      queue_.Done(write);
      StartLocked();
      if (queue_.idle()) idle_.notify_all();
    }
  }

  const int fd_;
  io_uring ring_;
  std::mutex mutex_;
  std::condition_variable idle_;
  IoQueue queue_;
  std::thread reaper_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> MakeUringIoEngine(int fd, int32_t depth) {
  io_uring ring{};
  // One entry more than the depth: the destructor's no-op.
  const int result = io_uring_queue_init(static_cast<unsigned>(depth) + 1, &ring, 0);
  if (result < 0) {
    return absl::UnavailableError(absl::StrCat("io_uring is refused: ", std::strerror(-result)));
  }
  return std::make_unique<UringIoEngine>(fd, depth, ring);
}

}  // namespace strata
