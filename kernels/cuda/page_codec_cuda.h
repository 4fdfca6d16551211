#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/page_codec.h"

namespace strata::cuda {

// Encodes on a stream of its own, from device memory straight into pinned memory.
absl::StatusOr<std::unique_ptr<PageCodec>> MakeCudaPageCodec(std::shared_ptr<CudaDevice> device);

}  // namespace strata::cuda
