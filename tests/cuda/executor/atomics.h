#pragma once

// CUDA's atomics: relaxed, as on the device, and real ones, so that ThreadSanitizer understands
// them.

#include <type_traits>

#include "tests/cuda/executor/builtins.h"

namespace executor {

template <class T, class F>
inline T AtomicUpdate(T* address, F update) {
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  auto* word = reinterpret_cast<Word*>(address);
  Word old_word = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T old_value;
    __builtin_memcpy(static_cast<void*>(&old_value), &old_word, sizeof(T));
    const T new_value = update(old_value);
    Word new_word;
    __builtin_memcpy(&new_word, static_cast<const void*>(&new_value), sizeof(T));
    if (__atomic_compare_exchange_n(word, &old_word, new_word, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
      return old_value;
    }
  }
}

}  // namespace executor

template <class T>
inline T atomicAdd(T* p, T v) {
  return executor::AtomicUpdate(p, [v](T old) { return static_cast<T>(old + v); });
}
inline __half2 atomicAdd(__half2* p, __half2 v) {
  return executor::AtomicUpdate(p, [v](__half2 old) { return __hadd2(old, v); });
}
template <class T>
inline T atomicSub(T* p, T v) {
  return executor::AtomicUpdate(p, [v](T old) { return static_cast<T>(old - v); });
}
template <class T>
inline T atomicMax(T* p, T v) {
  return executor::AtomicUpdate(p, [v](T old) { return old > v ? old : v; });
}
template <class T>
inline T atomicMin(T* p, T v) {
  return executor::AtomicUpdate(p, [v](T old) { return old < v ? old : v; });
}
template <class T>
inline T atomicExch(T* p, T v) {
  return executor::AtomicUpdate(p, [v](T) { return v; });
}
template <class T>
inline T atomicOr(T* p, T v) {
  return executor::AtomicUpdate(p, [v](T old) { return static_cast<T>(old | v); });
}
template <class T>
inline T atomicAnd(T* p, T v) {
  return executor::AtomicUpdate(p, [v](T old) { return static_cast<T>(old & v); });
}
template <class T>
inline T atomicCAS(T* p, T expected, T v) {
  return executor::AtomicUpdate(p, [=](T old) { return old == expected ? v : old; });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return executor::AtomicUpdate(p, [limit](unsigned old) { return old >= limit ? 0u : old + 1u; });
}
