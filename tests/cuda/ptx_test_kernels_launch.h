#pragma once

// One kernel for each wrapper of kernels/cuda/gpu_ptx.cuh. Fragments lie lane after lane, as
// registers.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace strata {

// One warp. a: [32][4], b: [32][2], c and d: [32][4].
cudaError_t LaunchMmaF16(const uint32_t* a, const uint32_t* b, const float* c, float* d);

}  // namespace strata
