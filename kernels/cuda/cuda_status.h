#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata::cuda {

// "CALL failed: cudaErrorName (what CUDA says of it)". ResourceExhausted for memory,
// FailedPrecondition for a machine without a driver or device that would do, else Internal.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace strata::cuda

// Early return on a failed call of the CUDA runtime.
#define STRATA_CUDA_RETURN_IF_ERROR(call)                                   \
  do {                                                                      \
    if (const cudaError_t strata_cuda = (call); strata_cuda != cudaSuccess) \
      return ::strata::cuda::CudaStatus(strata_cuda, #call);                \
  } while (false)
