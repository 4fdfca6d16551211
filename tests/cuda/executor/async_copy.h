#pragma once

// cp.async: bytes land at the wait that covers them and not before, and the destination is poison
// meanwhile, so that a missing wait, or a reader of the old contents, computes with NaN.

#include "tests/cuda/executor/builtins.h"

namespace executor {

// `source_bytes` below `bytes`: the rest of the destination becomes zero.
void CpAsync(void* destination, const void* source, int bytes, int source_bytes, Location location);
void CpAsyncCommit();
void CpAsyncWait(int groups_left);

}  // namespace executor
