#include "kernels/cuda/attention_decode.cuh"

namespace strata::cuda {

AttentionVariant DecodeUpTo128() { return DecodeVariant<128, false, 3>(); }

}  // namespace strata::cuda
