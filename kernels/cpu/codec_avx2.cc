#include "kernels/cpu/codec-inl.h"
#include "kernels/cpu/isa_avx2-inl.h"

namespace strata {

extern const CodecKernels kCodecAvx2 = PageEncoder<avx2::Ops>::Table();

}  // namespace strata
