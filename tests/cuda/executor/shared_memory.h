#pragma once

// A block's shared memory: exact sizes, exact alignment, filled with NaN, freed when the block
// ends.

#include <cstddef>

namespace executor {

void* DynamicShared();
size_t DynamicSharedBytes();

// One object a block for each key (the declaration's address).
void* StaticShared(const void* key, size_t bytes, size_t align);

}  // namespace executor
