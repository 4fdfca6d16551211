#include "server/rpc/work_queue.h"

#include <utility>

namespace strata::rpc {

WorkQueue::WorkQueue(size_t tasks_max) : tasks_max_(tasks_max), thread_([this] { Loop(); }) {}

WorkQueue::~WorkQueue() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

bool WorkQueue::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (tasks_.size() >= tasks_max_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

void WorkQueue::Loop() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &WorkQueue::Runnable));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace strata::rpc
