#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/upload_ring.h"
#include "kernels/linear_ops.h"

namespace strata::cuda {

// A stack of matrices in device memory, each at its stored size, rearranged for the tensor cores.
class CudaMatrix final : public WeightMatrix {
 public:
  // One source of the stack: its rows are outputs [first_output, first_output + out_features).
  struct Segment {
    int32_t first_output = 0;
    PackedWeights weights;
    Buffer memory;
  };

  // Sources that ValidateSources accepts pass through the ring, about `chunk_bytes` at a time. The
  // matrix is complete for what is enqueued next on the compute stream.
  static absl::StatusOr<std::unique_ptr<CudaMatrix>> Pack(absl::Span<const WeightSource> sources,
                                                          std::shared_ptr<CudaDevice> device,
                                                          UploadRing* ring,
                                                          size_t chunk_bytes = size_t{8} << 20);

  int32_t out_features() const override { return out_features_; }
  int32_t in_features() const override { return in_features_; }
  size_t bytes() const override { return bytes_; }
  absl::Span<const Segment> segments() const { return segments_; }

 private:
  CudaMatrix() = default;

  int32_t out_features_ = 0;
  int32_t in_features_ = 0;
  size_t bytes_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace strata::cuda
