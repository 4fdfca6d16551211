#pragma once

// The sanitizers' interfaces, or nothing where a build has none. For the executor's own files: they
// are never instrumented for ThreadSanitizer, so that the scheduler's bookkeeping is invisible to
// it; EXECUTOR_TSAN says that the kernels are.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define EXECUTOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EXECUTOR_ASAN 1
#endif
#endif

#ifdef EXECUTOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef EXECUTOR_TSAN
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, size_t size);
void __tsan_write_range(void* address, size_t size);
}
#endif

namespace executor {

inline void AsanPoison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#ifdef EXECUTOR_ASAN
  __asan_poison_memory_region(p, bytes);
#endif
}
inline void AsanUnpoison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#ifdef EXECUTOR_ASAN
  __asan_unpoison_memory_region(p, bytes);
#endif
}
inline bool AsanPoisoned([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#ifdef EXECUTOR_ASAN
  return bytes > 0 && __asan_region_is_poisoned(const_cast<void*>(p), bytes) != nullptr;
#else
  return false;
#endif
}
inline void TsanAcquire([[maybe_unused]] void* object) {
#ifdef EXECUTOR_TSAN
  __tsan_acquire(object);
#endif
}
inline void TsanRelease([[maybe_unused]] void* object) {
#ifdef EXECUTOR_TSAN
  __tsan_release(object);
#endif
}
inline void TsanRead([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#ifdef EXECUTOR_TSAN
  __tsan_read_range(const_cast<void*>(p), bytes);
#endif
}
inline void TsanWrite([[maybe_unused]] void* p, [[maybe_unused]] size_t bytes) {
#ifdef EXECUTOR_TSAN
  __tsan_write_range(p, bytes);
#endif
}

}  // namespace executor
