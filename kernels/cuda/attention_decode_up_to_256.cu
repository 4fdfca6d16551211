#include "kernels/cuda/attention_decode.cuh"

namespace strata::cuda {

AttentionVariant DecodeUpTo256() { return DecodeVariant<256, false, 2>(); }

}  // namespace strata::cuda
