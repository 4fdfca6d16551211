#include "kernels/cpu/codec-inl.h"
#include "kernels/cpu/isa_scalar-inl.h"

namespace strata {

extern const CodecKernels kCodecScalar = PageEncoder<scalar::Ops>::Table();

}  // namespace strata
