#pragma once

#include <memory>

#include "kernels/cuda/cuda_device.h"
#include "kernels/device_memory.h"

namespace strata::cuda {

std::unique_ptr<DeviceMemory> MakeCudaMemory(std::shared_ptr<CudaDevice> device);

}  // namespace strata::cuda
