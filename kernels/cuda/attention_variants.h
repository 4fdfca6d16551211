#pragma once

#include "kernels/cuda/attention_geometry.h"

// The attention kernels are compiled for the head dims that most models have, where all sizes are
// constants, and for ranges of the others: what lives in registers is sized by the largest. One .cu
// file a kernel, to be compiled beside each other.
namespace strata::cuda {

struct AttentionVariant {
  int query_tiles;  // eights of queries a warp
  int stages;       // of a ring
  cudaError_t (*allow_shared)(int bytes);
  cudaError_t (*launch)(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                        int32_t first_work, int32_t count, cudaStream_t stream);
};

// Of head dims 64, 128 and 256 alone, and of all up to 128 and 256.
AttentionVariant Decode64();
AttentionVariant Decode128();
AttentionVariant Decode256();
AttentionVariant DecodeUpTo128();
AttentionVariant DecodeUpTo256();
AttentionVariant Prefill64();
AttentionVariant Prefill128();
AttentionVariant Prefill256();
AttentionVariant PrefillUpTo128();
AttentionVariant PrefillUpTo256();

}  // namespace strata::cuda
