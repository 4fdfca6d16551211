#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/upload_ring.h"

namespace strata::cuda {

// Near-data attention: pages in pinned host memory are attended by the CPU where they lie, while
// the device attends to its own. Only q goes up and (o, m, l) comes down, whatever the context.
//
// One layer is: Split; Begin (enqueues q's way to the host, behind what computes it); the device's
// launches; Finish (waits for q, attends, and puts the states where the device's merge reads them).
// Engine thread; `host` computes on its own pool.
class HostAttention {
 public:
  HostAttention(std::shared_ptr<CudaDevice> device, AttentionBackend* host)
      : device_(std::move(device)), host_(host), uploads_(device_) {}

  // Memory for steps of up to `rows` queries.
  absl::Status Reserve(const AttentionShape& shape, int32_t rows);

  // Sorts the runs by where they lie. Whether any lies on the host. Holds until the next Split.
  bool Split(absl::Span<const AttentionSequence> sequences);
  // Every sequence, with the runs of device memory alone.
  absl::Span<const AttentionSequence> on_device() const { return device_sequences_; }

  absl::Status Begin(const AttentionShape& shape, int32_t rows, const float* q);
  // What the merge folds in: [rows][query_heads].
  absl::Status Finish(AttentionStates* states);

 private:
  const std::shared_ptr<CudaDevice> device_;
  AttentionBackend* const host_;
  UploadRing uploads_;
  Buffer q_;  // pinned
  Event q_here_;
  AttentionShape shape_;
  int32_t rows_ = 0;
  PartialStates states_;

  std::vector<PageRun> runs_;  // the device's, then the host's, of each sequence
  std::vector<AttentionSequence> device_sequences_;
  std::vector<AttentionSequence> host_sequences_;
};

}  // namespace strata::cuda
