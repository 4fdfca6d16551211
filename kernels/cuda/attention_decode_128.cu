#include "kernels/cuda/attention_decode.cuh"

namespace strata::cuda {

AttentionVariant Decode128() { return DecodeVariant<128, true, 3>(); }

}  // namespace strata::cuda
