#pragma once

// A stack and the switch to it and back. One host thread at a time may use fibers (the runtime's
// lock).

#include <boost/context/detail/fcontext.hpp>

#include "tests/cuda/executor/sanitizers.h"

namespace executor {

class Fiber {
 public:
  // `entry(argument)` must never return: it ends by suspending forever, or loops.
  Fiber(void (*entry)(void*), void* argument, unsigned id);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void Resume();   // host to fiber; returns at the fiber's next Suspend
  void Suspend();  // fiber to host

 private:
  static void Start(boost::context::detail::transfer_t transfer);

  void (*entry_)(void*);
  void* argument_;
  char* stack_ = nullptr;  // above one guard page
  boost::context::detail::fcontext_t context_ = nullptr;
#ifdef EXECUTOR_ASAN
  void* fake_stack_ = nullptr;
#endif
#ifdef EXECUTOR_TSAN
  void* tsan_fiber_ = nullptr;
  friend class AsHost;
#endif
};

// While it lives, ThreadSanitizer takes what the current fiber does for the host thread's doing:
// allocation on behalf of a fiber would be reported otherwise. Does nothing without ThreadSanitizer
// or a fiber.
class AsHost {
 public:
  explicit AsHost(Fiber* fiber);
  ~AsHost();
  AsHost(const AsHost&) = delete;
  AsHost& operator=(const AsHost&) = delete;

 private:
  [[maybe_unused]] Fiber* fiber_;
};

}  // namespace executor
