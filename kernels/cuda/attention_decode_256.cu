#include "kernels/cuda/attention_decode.cuh"

namespace strata::cuda {

AttentionVariant Decode256() { return DecodeVariant<256, true, 2>(); }

}  // namespace strata::cuda
