// Linked in place of the CUDA backend where the build has none.

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace strata {

absl::StatusOr<Backend> CreateCudaBackend(const CudaBackendOptions& options) {
  return absl::FailedPreconditionError("this build has no CUDA support");
}

}  // namespace strata
