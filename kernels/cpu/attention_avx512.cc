#include "kernels/cpu/attention_split-inl.h"
#include "kernels/cpu/isa_avx512-inl.h"

namespace strata {

extern const AttentionKernels kAttentionAvx512 = SplitAttention<avx512::Ops>::Table();

}  // namespace strata
