#pragma once

// How threads of a block meet: the two primitives under every barrier, shuffle, vote and warp-wide
// instruction. Called from inside a running kernel only.

#include "tests/cuda/executor/builtins.h"

namespace executor {

// Reports a kernel's mistake with the thread and block it happened in, and aborts.
[[noreturn]] void Fail(Location location, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

enum class WarpOp { kShuffle, kVote, kReduce, kSyncWarp, kMma, kLdmatrix };

// Runs once, on the last lane of the mask to arrive; lanes[i] is lane i's payload, or null.
using WarpFunction = void (*)(void* const* lanes, unsigned mask);

// Waits until every living lane of `mask` is in the same operation; the last one runs `function`.
// With `orders_memory` it is also a memory barrier among the lanes, as __syncwarp is and a shuffle
// is not.
void WarpCollective(WarpOp op, unsigned mask, void* payload, WarpFunction function,
                    bool orders_memory, Location location);

enum class BarrierReduction { kNone, kCount, kAnd, kOr };

// __syncthreads and its variants that reduce a predicate; all threads of the block must come.
int BlockBarrier(BarrierReduction reduction, int predicate, Location location);

void MemoryFence();
void YieldThread();  // lets other threads of the block run

unsigned LaneId();
unsigned LiveLanes();  // of the caller's warp

}  // namespace executor
