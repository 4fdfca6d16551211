// Only in builds with ThreadSanitizer, which cannot see into the distribution's absl::Mutex: what
// such a mutex protects would be reported as a race. The linker (--wrap, base/CMakeLists.txt) puts
// these functions in place of the mutex's, for the project's own objects. They tell the sanitizer
// and call the real ones.

#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

extern "C" {

void __real__ZN4absl7debian35Mutex4LockEv(absl::Mutex* mutex);
void __real__ZN4absl7debian35Mutex6UnlockEv(absl::Mutex* mutex);
void __real__ZN4absl7debian35Mutex10ReaderLockEv(absl::Mutex* mutex);
void __real__ZN4absl7debian35Mutex12ReaderUnlockEv(absl::Mutex* mutex);
void __real__ZN4absl7debian35MutexD1Ev(absl::Mutex* mutex);

void __wrap__ZN4absl7debian35Mutex4LockEv(absl::Mutex* mutex) {
  __tsan_mutex_pre_lock(mutex, 0);
  __real__ZN4absl7debian35Mutex4LockEv(mutex);
  __tsan_mutex_post_lock(mutex, 0, 0);
}

void __wrap__ZN4absl7debian35Mutex6UnlockEv(absl::Mutex* mutex) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __real__ZN4absl7debian35Mutex6UnlockEv(mutex);
  __tsan_mutex_post_unlock(mutex, 0);
}

void __wrap__ZN4absl7debian35Mutex10ReaderLockEv(absl::Mutex* mutex) {
  __tsan_mutex_pre_lock(mutex, __tsan_mutex_read_lock);
  __real__ZN4absl7debian35Mutex10ReaderLockEv(mutex);
  __tsan_mutex_post_lock(mutex, __tsan_mutex_read_lock, 0);
}

void __wrap__ZN4absl7debian35Mutex12ReaderUnlockEv(absl::Mutex* mutex) {
  __tsan_mutex_pre_unlock(mutex, __tsan_mutex_read_lock);
  __real__ZN4absl7debian35Mutex12ReaderUnlockEv(mutex);
  __tsan_mutex_post_unlock(mutex, __tsan_mutex_read_lock);
}

void __wrap__ZN4absl7debian35MutexD1Ev(absl::Mutex* mutex) {
  __tsan_mutex_destroy(mutex, 0);
  __real__ZN4absl7debian35MutexD1Ev(mutex);
}

// By looking again and again: the real one has a condition evaluated by whichever thread unlocks,
// after the sanitizer took the mutex for free.
bool __wrap__ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE(
    absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition.Eval()) {
    if (absl::Now() >= deadline) return false;
    __wrap__ZN4absl7debian35Mutex6UnlockEv(mutex);
    absl::SleepFor(absl::Microseconds(200));
    __wrap__ZN4absl7debian35Mutex4LockEv(mutex);
  }
  return true;
}

void __wrap__ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE(absl::Mutex* mutex,
                                                           const absl::Condition& condition) {
  __wrap__ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE(
      mutex, condition, absl::InfiniteDuration());
}

}  // extern "C"
