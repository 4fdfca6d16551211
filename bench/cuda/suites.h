#pragma once

// What cuda_bench measures. Every suite checks its results first: a wrong kernel has no speed.

#include <cuda_runtime_api.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace strata::bench {

struct CudaBenchOptions {
  // Sizes that the executor gets through in seconds, one run each: for checking the program, not
  // the GPU.
  bool smoke = false;
  // Bytes a second of a device-to-device copy, read and written: the yardstick of every other
  // figure. Measured first.
  double copy_bytes_per_s = 0;
};

// Seconds that the work `enqueue` puts on the stream takes on the device: the median of 11 runs
// (one in a smoke run) after two that are not counted.
double DeviceSeconds(const CudaBenchOptions& options, cudaStream_t stream,
                     const std::function<void()>& enqueue);

absl::StatusOr<nlohmann::json> RunCudaCopy(const CudaBenchOptions& options);
absl::StatusOr<nlohmann::json> RunCudaCodec(const CudaBenchOptions& options);
absl::StatusOr<nlohmann::json> RunCudaAttention(const CudaBenchOptions& options);
absl::StatusOr<nlohmann::json> RunCudaMatmul(const CudaBenchOptions& options);
absl::StatusOr<nlohmann::json> RunCudaSample(const CudaBenchOptions& options);

}  // namespace strata::bench
