#include "tests/cuda/executor/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace executor {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

#ifdef EXECUTOR_ASAN
constexpr size_t kStackBytes = 256 << 10;  // instrumented frames are several times larger
#else
constexpr size_t kStackBytes = 128 << 10;
#endif
constexpr size_t kStackGuardBytes = 4096;

// The host side of the switch that is going on.
struct Host {
  boost::context::detail::fcontext_t context = nullptr;
#ifdef EXECUTOR_ASAN
  const void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;
#endif
#ifdef EXECUTOR_TSAN
  void* tsan_fiber = nullptr;
  char handover = 0;
#endif
} host;

}  // namespace

Fiber::Fiber(void (*entry)(void*), void* argument, [[maybe_unused]] unsigned id)
    : entry_(entry), argument_(argument) {
  void* mapping = mmap(nullptr, kStackGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    std::perror("executor: no memory for a thread's stack");
    std::abort();
  }
  mprotect(mapping, kStackGuardBytes, PROT_NONE);
  stack_ = static_cast<char*>(mapping) + kStackGuardBytes;
  context_ = make_fcontext(stack_ + kStackBytes, kStackBytes, &Fiber::Start);
#ifdef EXECUTOR_TSAN
  tsan_fiber_ = __tsan_create_fiber(0);
  char name[32];
  std::snprintf(name, sizeof name, "cuda thread %u", id);
  __tsan_set_fiber_name(tsan_fiber_, name);
#endif
}

Fiber::~Fiber() { munmap(stack_ - kStackGuardBytes, kStackGuardBytes + kStackBytes); }

void Fiber::Start(transfer_t transfer) {
#ifdef EXECUTOR_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &host.stack_bottom, &host.stack_bytes);
#endif
  host.context = transfer.fctx;
  auto* self = static_cast<Fiber*>(transfer.data);
  self->entry_(self->argument_);
  std::abort();
}

void Fiber::Resume() {
#ifdef EXECUTOR_ASAN
  __sanitizer_start_switch_fiber(&host.fake_stack, stack_, kStackBytes);
#endif
#ifdef EXECUTOR_TSAN
  host.tsan_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, 1);  // 1: the switch itself orders nothing
#endif
  const transfer_t transfer = jump_fcontext(context_, this);
#ifdef EXECUTOR_ASAN
  __sanitizer_finish_switch_fiber(host.fake_stack, nullptr, nullptr);
#endif
  context_ = transfer.fctx;
}

void Fiber::Suspend() {
#ifdef EXECUTOR_ASAN
  __sanitizer_start_switch_fiber(&fake_stack_, host.stack_bottom, host.stack_bytes);
#endif
#ifdef EXECUTOR_TSAN
  __tsan_switch_to_fiber(host.tsan_fiber, 1);
#endif
  const transfer_t transfer = jump_fcontext(host.context, nullptr);
#ifdef EXECUTOR_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &host.stack_bottom, &host.stack_bytes);
#endif
  host.context = transfer.fctx;
}

AsHost::AsHost(Fiber* fiber) : fiber_(fiber) {
#ifdef EXECUTOR_TSAN
  if (fiber_) __tsan_switch_to_fiber(host.tsan_fiber, 1);
#endif
}

AsHost::~AsHost() {
#ifdef EXECUTOR_TSAN
  if (!fiber_) return;
  __tsan_release(&host.handover);
  __tsan_switch_to_fiber(fiber_->tsan_fiber_, 1);
  __tsan_acquire(&host.handover);
#endif
}

}  // namespace executor
