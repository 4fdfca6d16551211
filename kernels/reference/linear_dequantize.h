#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear_ops.h"

namespace strata {

// The values of one stored row by the definition of its GGUF type, each formula in float and in the
// order that defines it, so that results compare bit by bit. `values` must be whole blocks.
void DequantizeRow(WeightType type, const std::byte* row, int32_t values, float* out);

}  // namespace strata
