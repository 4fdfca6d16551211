#include "kernels/cuda/attention_prefill.cuh"

namespace strata::cuda {

// Eight queries a warp: the registers are full of channels.
AttentionVariant PrefillUpTo256() { return PrefillVariant<256, false, 1, 2>(); }

}  // namespace strata::cuda
