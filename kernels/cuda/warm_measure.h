#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/cuda/cuda_device.h"

namespace strata::cuda {

// Times attention of one query row over warm (I4) pages in pinned memory, which kernels of `device`
// read over the link and `host` reads where they lie. Takes a few tens of milliseconds and MiB, and
// gives both back. `device` has no use for runs that are on the host by then: it is asked for runs
// not marked so.
absl::StatusOr<WarmAttentionFacts> MeasureWarmAttention(const AttentionShape& shape,
                                                        std::shared_ptr<CudaDevice> cuda,
                                                        AttentionBackend* device,
                                                        AttentionBackend* host);

}  // namespace strata::cuda
