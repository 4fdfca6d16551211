#pragma once

#include <memory>

#include "kernels/linear_ops.h"

namespace strata {

// The oracle: weights dequantized to float once, every sum in double, one thread. Obvious on
// purpose; the layout of the results is the contract's, not a copy of another backend's code.
std::unique_ptr<LinearOps> MakeReferenceLinear();

}  // namespace strata
