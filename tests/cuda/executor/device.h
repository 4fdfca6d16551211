#pragma once

// Everything kernels/cuda/gpu_compat.cuh needs where there is no nvcc: CUDA's device language for
// the host compiler, run by this executor with one fiber a thread.

#include "tests/cuda/executor/async_copy.h"
#include "tests/cuda/executor/atomics.h"
#include "tests/cuda/executor/intrinsics.h"
#include "tests/cuda/executor/launch.h"
#include "tests/cuda/executor/rendezvous.h"
#include "tests/cuda/executor/shared_memory.h"
#include "tests/cuda/executor/tensor.h"
#include "tests/cuda/executor/warp.h"
