#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_table-inl.h"
#include "kernels/linear_ops.h"

namespace strata {

// Bytes of a tile of rows of `in_features` values, before padding.
size_t TileBytes(WeightType type, int32_t in_features);

// Writes block `index` of one row of the file as output `lane` of a tile (linear_table-inl.h).
void PackBlock(WeightType type, const std::byte* block, int32_t index, int32_t lane,
               std::byte* tile);

// The values of that block, bit for bit those of the block it was packed from.
void UnpackBlock(WeightType type, const std::byte* tile, int32_t index, int32_t lane, float* out);

}  // namespace strata
