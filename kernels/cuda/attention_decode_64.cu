#include "kernels/cuda/attention_decode.cuh"

namespace strata::cuda {

AttentionVariant Decode64() { return DecodeVariant<64, true, 4>(); }

}  // namespace strata::cuda
