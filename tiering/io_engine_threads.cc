#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tiering/io_engine.h"

namespace strata {
namespace {

// More threads than this only help disks that a server would drive with io_uring.
constexpr int32_t kThreadsMax = 8;

class ThreadIoEngine final : public IoEngine {
 public:
  ThreadIoEngine(int fd, int32_t depth) : fd_(fd), queue_(depth) {
    const int32_t threads = std::min(depth, kThreadsMax);
    for (int32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }

  ~ThreadIoEngine() override {
    {
      std::unique_lock lock(mutex_);
      idle_.wait(lock, [this] { return queue_.idle(); });
      stop_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::string_view name() const override { return "threads"; }

 private:
  void DoSubmit(IoRequest* request) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.Push(request);
    }
    ready_.notify_one();
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      IoRequest* request = nullptr;
      ready_.wait(lock, [&] { return stop_ || (request = queue_.Start()) != nullptr; });
      if (request == nullptr) return;
      lock.unlock();
      // Complete may hand the request to another submission at once.
      const bool write = request->write;
      Finish(request, Transfer(*request));
      lock.lock();
      queue_.Done(write);
      // Another thread may have waited only because this one was in flight.
      ready_.notify_one();
      if (queue_.idle()) idle_.notify_all();
    }
  }

  int64_t Transfer(const IoRequest& request) const {
    while (true) {
      const auto offset = static_cast<off_t>(request.offset);
      const ssize_t moved = request.write ? pwrite(fd_, request.data, request.bytes, offset)
                                          : pread(fd_, request.data, request.bytes, offset);
      if (moved >= 0) return moved;
      if (errno != EINTR) return -errno;
    }
  }

  const int fd_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable idle_;
  IoQueue queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> MakeThreadIoEngine(int fd, int32_t depth) {
  return std::make_unique<ThreadIoEngine>(fd, depth);
}

}  // namespace strata
