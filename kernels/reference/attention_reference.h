#pragma once

#include <memory>

#include "kernels/attention.h"
#include "kernels/page_codec.h"

namespace strata {

// The oracles: every value dequantized by the formula of page_format.h, every sum in double, one
// token after the other. Slow and obvious on purpose.
std::unique_ptr<AttentionBackend> MakeReferenceAttention();
std::unique_ptr<PageCodec> MakeReferencePageCodec();

}  // namespace strata
