#include "kernels/cpu/attention_split-inl.h"
#include "kernels/cpu/isa_avx2-inl.h"

namespace strata {

extern const AttentionKernels kAttentionAvx2 = SplitAttention<avx2::Ops>::Table();

}  // namespace strata
