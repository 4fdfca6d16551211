#pragma once

// Every inline PTX instruction of the product, one wrapper each, for nvcc. The executor has the
// same names in tests/cuda/executor/gpu_ptx.h, and tests/cuda/ptx_test.cc compares each with a
// scalar formula: the one place where a GPU can disagree with the emulation. Included by
// gpu_compat.cuh only.

#include <cuda_fp16.h>

#include <cstdint>

namespace gpu {

// D = A (16x16, row-major) * B (16x8, column-major) + C, halves in, float sums. A warp, all lanes.
GPU_DEVICE void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

// The same with bfloat16 in.
GPU_DEVICE void MmaM16N8K16Bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

// D = A (16x32 bytes, row-major) * B (32x8 bytes, column-major) + C, exact in int32. The name says
// which operands are unsigned (U8) and signed (S8), A first.
#define GPU_MMA_INT8(name, types)                                                               \
  GPU_DEVICE void name(int32_t(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2],            \
                       const int32_t(&c)[4]) {                                                  \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types                                 \
                 ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"             \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), \
                   "r"(c[1]), "r"(c[2]), "r"(c[3]));                                            \
  }
GPU_MMA_INT8(MmaM16N8K32U8S8, "u8.s8")
GPU_MMA_INT8(MmaM16N8K32S8U8, "s8.u8")
GPU_MMA_INT8(MmaM16N8K32S8S8, "s8.s8")
GPU_MMA_INT8(MmaM16N8K32U8U8, "u8.u8")
#undef GPU_MMA_INT8

// ldmatrix: 8x8 matrices of 16-bit elements from shared memory; lane i names row i % 8 of matrix i
// / 8, 16 bytes that are 16-byte aligned. The lanes past the last matrix may name anything. A warp,
// all lanes.
#define GPU_SHARED_ADDRESS(p) static_cast<unsigned>(__cvta_generic_to_shared(p))
GPU_DEVICE void LdmatrixX1(uint32_t (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];\n"
               : "=r"(r[0])
               : "r"(GPU_SHARED_ADDRESS(row))
               : "memory");
}
GPU_DEVICE void LdmatrixX2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(GPU_SHARED_ADDRESS(row))
               : "memory");
}
GPU_DEVICE void LdmatrixX4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(GPU_SHARED_ADDRESS(row))
               : "memory");
}
GPU_DEVICE void LdmatrixX1Trans(uint32_t (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];\n"
               : "=r"(r[0])
               : "r"(GPU_SHARED_ADDRESS(row))
               : "memory");
}
GPU_DEVICE void LdmatrixX2Trans(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(GPU_SHARED_ADDRESS(row))
               : "memory");
}
GPU_DEVICE void LdmatrixX4Trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(GPU_SHARED_ADDRESS(row))
               : "memory");
}

// Starts a copy of 16 aligned bytes from global (or pinned host) to shared memory, past L1.
GPU_DEVICE void CpAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(GPU_SHARED_ADDRESS(shared)),
               "l"(global)
               : "memory");
}
// Copies `bytes` (0 to 16) and fills the rest of the 16 with zero; with 0 the source is not read.
GPU_DEVICE void CpAsync16ZeroFill(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(GPU_SHARED_ADDRESS(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}
#undef GPU_SHARED_ADDRESS
GPU_DEVICE void CpAsyncCommit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most kGroupsLeft of the calling thread's committed groups are in flight. A block
// barrier must follow before other threads read what arrived.
template <int kGroupsLeft>
GPU_DEVICE void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroupsLeft) : "memory");
}

// c + the dot product of four bytes of a with four of b; signedness of a, then b.
GPU_DEVICE int32_t Dp4aU8S8(uint32_t a, uint32_t b, int32_t c) {
  int32_t d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
GPU_DEVICE int32_t Dp4aS8S8(uint32_t a, uint32_t b, int32_t c) {
  int32_t d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
GPU_DEVICE uint32_t Dp4aU8U8(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("dp4a.u32.u32 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// 16 aligned bytes that no kernel writes meanwhile, read once: not kept in L1.
GPU_DEVICE uint4 LoadNoAllocate16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
// 16 aligned bytes, evicted first from every cache.
GPU_DEVICE uint4 LoadStreaming16(const void* p) { return __ldcs(static_cast<const uint4*>(p)); }
GPU_DEVICE void StoreStreaming16(void* p, uint4 v) { __stcs(static_cast<uint4*>(p), v); }

// 2^x within 2 ulp; subnormal results are 0.
GPU_DEVICE float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gpu
