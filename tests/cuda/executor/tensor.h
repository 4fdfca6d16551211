#pragma once

// Tensor-core instructions and ldmatrix, as the PTX ISA defines their fragments.

#include "tests/cuda/executor/rendezvous.h"

namespace executor {

// mma.m16n8k16, row.col, f32 accumulate: A 16x16, B 16x8, C and D 16x8.
void MmaM16N8K16F16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                    const float (&c)[4], Location location);
void MmaM16N8K16Bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     const float (&c)[4], Location location);

// mma.m16n8k32, row.col, s32 accumulate: A 16x32 bytes, B 32x8 bytes, C and D 16x8; sums wrap.
void MmaM16N8K32(bool a_signed, bool b_signed, int32_t (&d)[4], const uint32_t (&a)[4],
                 const uint32_t (&b)[2], const int32_t (&c)[4], Location location);

// ldmatrix.m8n8.x{count}.shared.b16: lane i gives the address of row i, 16-byte aligned.
void Ldmatrix(int count, uint32_t* out, const void* row, bool transposed, Location location);

}  // namespace executor
