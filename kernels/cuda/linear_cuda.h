#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "kernels/linear_ops.h"

namespace strata::cuda {

// Weights stay at their stored size; every call enqueues on the device's compute stream. What goes
// wrong there is noted in the device and comes out of its next Synchronize.
std::unique_ptr<LinearOps> MakeCudaLinear(std::shared_ptr<CudaDevice> device);

}  // namespace strata::cuda
