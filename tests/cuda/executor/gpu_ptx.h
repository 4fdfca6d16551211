#pragma once

// The wrappers of kernels/cuda/gpu_ptx.cuh, emulated: same names, same contracts. Included by
// gpu_compat.cuh only.

#include "tests/cuda/executor/device.h"

namespace gpu {

inline void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        const float (&c)[4], EXECUTOR_CALLER) {
  executor::MmaM16N8K16F16(d, a, b, c, EXECUTOR_HERE);
}
inline void MmaM16N8K16Bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            const float (&c)[4], EXECUTOR_CALLER) {
  executor::MmaM16N8K16Bf16(d, a, b, c, EXECUTOR_HERE);
}
inline void MmaM16N8K32U8S8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            const int32_t (&c)[4], EXECUTOR_CALLER) {
  executor::MmaM16N8K32(false, true, d, a, b, c, EXECUTOR_HERE);
}
inline void MmaM16N8K32S8U8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            const int32_t (&c)[4], EXECUTOR_CALLER) {
  executor::MmaM16N8K32(true, false, d, a, b, c, EXECUTOR_HERE);
}
inline void MmaM16N8K32S8S8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            const int32_t (&c)[4], EXECUTOR_CALLER) {
  executor::MmaM16N8K32(true, true, d, a, b, c, EXECUTOR_HERE);
}
inline void MmaM16N8K32U8U8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            const int32_t (&c)[4], EXECUTOR_CALLER) {
  executor::MmaM16N8K32(false, false, d, a, b, c, EXECUTOR_HERE);
}

inline void LdmatrixX1(uint32_t (&r)[1], const void* row, EXECUTOR_CALLER) {
  executor::Ldmatrix(1, r, row, false, EXECUTOR_HERE);
}
inline void LdmatrixX2(uint32_t (&r)[2], const void* row, EXECUTOR_CALLER) {
  executor::Ldmatrix(2, r, row, false, EXECUTOR_HERE);
}
inline void LdmatrixX4(uint32_t (&r)[4], const void* row, EXECUTOR_CALLER) {
  executor::Ldmatrix(4, r, row, false, EXECUTOR_HERE);
}
inline void LdmatrixX1Trans(uint32_t (&r)[1], const void* row, EXECUTOR_CALLER) {
  executor::Ldmatrix(1, r, row, true, EXECUTOR_HERE);
}
inline void LdmatrixX2Trans(uint32_t (&r)[2], const void* row, EXECUTOR_CALLER) {
  executor::Ldmatrix(2, r, row, true, EXECUTOR_HERE);
}
inline void LdmatrixX4Trans(uint32_t (&r)[4], const void* row, EXECUTOR_CALLER) {
  executor::Ldmatrix(4, r, row, true, EXECUTOR_HERE);
}

inline void CpAsync16(void* shared, const void* global, EXECUTOR_CALLER) {
  executor::CpAsync(shared, global, 16, 16, EXECUTOR_HERE);
}
inline void CpAsync16ZeroFill(void* shared, const void* global, int bytes, EXECUTOR_CALLER) {
  executor::CpAsync(shared, global, 16, bytes, EXECUTOR_HERE);
}
inline void CpAsyncCommit() { executor::CpAsyncCommit(); }
template <int kGroupsLeft>
inline void CpAsyncWait() {
  executor::CpAsyncWait(kGroupsLeft);
}

inline int32_t Dp4aU8S8(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<int>(a >> 8 * i & 0xff) * int{static_cast<int8_t>(b >> 8 * i)};
  }
  return c;
}
inline int32_t Dp4aS8S8(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
inline uint32_t Dp4aU8U8(uint32_t a, uint32_t b, uint32_t c) { return __dp4a(a, b, c); }

inline uint4 LoadNoAllocate16(const void* p) { return *static_cast<const uint4*>(p); }
inline uint4 LoadStreaming16(const void* p) { return *static_cast<const uint4*>(p); }
inline void StoreStreaming16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }

inline float Exp2Approx(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}

}  // namespace gpu
