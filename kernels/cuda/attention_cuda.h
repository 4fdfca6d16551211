#pragma once

#include <cstddef>
#include <memory>

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_device.h"

namespace strata::cuda {

// Attention over hot pages in device memory and over pages in pinned memory: the kernels read
// those, gathered in `gather_bytes` of device memory as far as they go (page_stage.h), or `host`
// attends to them (host_attention.h). Which, is settled by the first Reserve and then the same for
// every row, because the two round differently. Enqueues on the device's compute stream; errors are
// noted in the device.
std::unique_ptr<AttentionBackend> MakeCudaAttention(std::shared_ptr<CudaDevice> device,
                                                    WarmAttention warm, size_t gather_bytes,
                                                    std::unique_ptr<AttentionBackend> host);

}  // namespace strata::cuda
