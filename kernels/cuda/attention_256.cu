#include "kernels/cuda/attention_variants.cuh"

namespace strata::cuda {

// Wide tiles are as narrow as narrow ones here: the registers are full of channels.
AttentionVariant AttentionUpTo256() { return AttentionInstance<16, 1, 2>::Variant(); }

}  // namespace strata::cuda
