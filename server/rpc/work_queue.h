#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace strata::rpc {

// One thread that runs tasks in the order they came. It keeps slow work off the threads that must
// not wait: tokenizing off gRPC's few threads, writing to sockets off the engine's.
//
// Any thread may post. W1: at most `tasks_max` tasks wait. W2: the destructor runs what was posted.
class WorkQueue {
 public:
  explicit WorkQueue(size_t tasks_max);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False, and the task is dropped, when the queue is full.
  bool Post(std::function<void()> task);

 private:
  void Loop();
  bool Runnable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !tasks_.empty() || stop_; }

  const size_t tasks_max_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace strata::rpc
