#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "kernels/token_sampler.h"

namespace strata::cuda {

// Enqueues on the device's compute stream. What goes wrong there is noted in the device and comes
// out of its next Synchronize.
std::unique_ptr<TokenSampler> MakeCudaSampler(std::shared_ptr<CudaDevice> device);

}  // namespace strata::cuda
