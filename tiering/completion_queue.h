#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace strata {

// Something that was done behind the engine's back. An object is in the queue at most once; its
// owner neither touches nor frees it from the moment it is handed out until it is drained.
struct Completion {
  enum class Kind : uint8_t { kEncoded, kWritten, kErased, kRead };
  explicit Completion(Kind what) : kind(what) {}
  const Kind kind;
  Completion* next = nullptr;
};

// From the mover and the I/O threads to the engine thread. Intrusive, so it neither allocates nor
// fills up.
class CompletionQueue {
 public:
  // Any thread.
  void Push(Completion* done) {
    {
      const std::lock_guard lock(mutex_);
      done->next = nullptr;
      (last_ == nullptr ? first_ : last_->next) = done;
      last_ = done;
    }
    ready_.notify_one();
  }

  // Everything that has come in, oldest first, linked by `next`; null when nothing has.
  Completion* TakeAll() {
    const std::lock_guard lock(mutex_);
    return TakeLocked();
  }

  // As TakeAll, but waits up to `timeout` for something to come in.
  Completion* WaitAll(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [this] { return first_ != nullptr; });
    return TakeLocked();
  }

 private:
  Completion* TakeLocked() {
    Completion* all = first_;
    first_ = last_ = nullptr;
    return all;
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  Completion* first_ = nullptr;
  Completion* last_ = nullptr;
};

}  // namespace strata
