#include "kernels/cuda/attention_prefill.cuh"

namespace strata::cuda {

AttentionVariant PrefillUpTo128() { return PrefillVariant<128, false, 2, 3>(); }

}  // namespace strata::cuda
