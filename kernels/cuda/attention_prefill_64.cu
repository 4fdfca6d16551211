#include "kernels/cuda/attention_prefill.cuh"

namespace strata::cuda {

AttentionVariant Prefill64() { return PrefillVariant<64, true, 2, 3>(); }

}  // namespace strata::cuda
