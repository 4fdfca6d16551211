#include "kernels/cuda/attention_prefill.cuh"

namespace strata::cuda {

AttentionVariant Prefill128() { return PrefillVariant<128, true, 2, 3>(); }

}  // namespace strata::cuda
