#include "kernels/cpu/attention_split-inl.h"
#include "kernels/cpu/isa_scalar-inl.h"

namespace strata {

extern const AttentionKernels kAttentionScalar = SplitAttention<scalar::Ops>::Table();

}  // namespace strata
