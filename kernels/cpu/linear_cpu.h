#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/linear_ops.h"

namespace strata {

// LinearOps on the CPU. Quantized weights are multiplied as they are stored, with activations
// quantized by groups of 32 to 16-bit integers, as two int8 numbers each; plain weights in float.
// `pool` is borrowed and must outlive the object; `isa` must be one that this CPU has (ChooseIsa).
std::unique_ptr<LinearOps> MakeCpuLinear(Isa isa, ThreadPool* pool);

}  // namespace strata
