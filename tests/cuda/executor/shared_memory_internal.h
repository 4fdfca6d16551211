#pragma once

// The life of a block's shared memory, for the scheduler.

#include <cstddef>

namespace executor {

// Fills with bytes 0xff: NaN as float and as half. Not memset, which ThreadSanitizer intercepts.
void FillWithNan(void* p, size_t bytes);

void BeginBlockMemory(size_t dynamic_bytes);
// Checks the guard zones and frees; under ThreadSanitizer only EndGridMemory frees.
void EndBlockMemory();
void EndGridMemory();

}  // namespace executor
