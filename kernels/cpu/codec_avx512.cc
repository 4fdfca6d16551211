#include "kernels/cpu/codec-inl.h"
#include "kernels/cpu/isa_avx512-inl.h"

namespace strata {

extern const CodecKernels kCodecAvx512 = PageEncoder<avx512::Ops>::Table();

}  // namespace strata
