#pragma once

#include "kernels/cuda/attention_geometry.h"

// The attention kernel is compiled once for each of a few ranges of head dims, narrow and wide:
// what lives in registers is sized by them. One .cu file a range, to be compiled beside each other.
namespace strata::cuda {

struct AttentionVariant {
  int query_tiles;
  int stages;
  cudaError_t (*allow_shared)(int bytes);
  cudaError_t (*launch)(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                        int32_t first_work, int32_t count, cudaStream_t stream);
};

// Head dims up to 64, 128 and 256.
AttentionVariant AttentionUpTo64(bool wide);
AttentionVariant AttentionUpTo128(bool wide);
AttentionVariant AttentionUpTo256();

}  // namespace strata::cuda
