#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/page_codec.h"

namespace strata {

// Attention on the CPU. `pool` is borrowed and must outlive the backend; `isa` must be one that
// this CPU has (ChooseIsa).
std::unique_ptr<AttentionBackend> MakeCpuAttention(Isa isa, ThreadPool* pool);

std::unique_ptr<PageCodec> MakeCpuPageCodec(Isa isa);

}  // namespace strata
