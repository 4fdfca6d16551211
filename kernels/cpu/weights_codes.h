#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_table-inl.h"
#include "kernels/linear_ops.h"

namespace strata {

// Where the parts of one record of a packed tile lie (linear_table-inl.h).
struct TileRecord {
  std::byte* params = nullptr;
  std::byte* codes = nullptr;
};

// Writes one block of the file as output `lane` of a record.
void PackBlock(WeightType type, const std::byte* block, int32_t lane, const TileRecord& record);

// The values of output `lane` of a record, bit for bit those of the block it was packed from.
void UnpackBlock(WeightType type, const TileRecord& record, int32_t lane, float* out);

}  // namespace strata
