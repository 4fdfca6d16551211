#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace strata {

// A first-in first-out queue of at most `capacity` values between threads; its memory is taken at
// construction. Any number of producers and consumers.
//   Q1: a full queue refuses, it never grows. Q2: a closed queue refuses new values and hands out
//   those it has, then nullopt.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : ring_(capacity) { STRATA_CHECK(capacity > 0); }

  // False when full or closed; the value is then dropped.
  bool TryPush(T value) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || size_ == ring_.size()) return false;
      ring_[(first_ + size_) % ring_.size()] = std::move(value);
      ++size_;
    }
    ready_.notify_one();
    return true;
  }

  // Blocks until there is a value, or nullopt once the queue is closed and empty.
  std::optional<T> Pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return size_ > 0 || closed_; });
    return Take();
  }

  std::optional<T> TryPop() {
    const std::lock_guard lock(mutex_);
    return Take();
  }

  void Close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return size_;
  }

 private:
  std::optional<T> Take() {  // the mutex is held
    if (size_ == 0) return std::nullopt;
    std::optional<T> value(std::move(ring_[first_]));
    first_ = (first_ + 1) % ring_.size();
    --size_;
    return value;
  }

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> ring_;
  size_t first_ = 0;
  size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace strata
