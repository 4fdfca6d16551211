#include "kernels/cuda/host_attention.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {
namespace {

size_t QueryBytes(const AttentionShape& shape, int32_t rows) {
  return sizeof(float) * rows * shape.query_heads * shape.head_dim;
}

size_t StateBytes(const AttentionShape& shape, int32_t rows) {
  return sizeof(float) *
         AttentionStateFloats(int64_t{1} * rows * shape.query_heads, shape.head_dim);
}

}  // namespace

absl::Status HostAttention::Reserve(const AttentionShape& shape, int32_t rows) {
  if (q_here_.get() == nullptr) {
    STRATA_ASSIGN_OR_RETURN(q_here_, Event::Create(Event::Wait::kSpin));
  }
  STRATA_RETURN_IF_ERROR(uploads_.Reserve(StateBytes(shape, rows)));
  if (q_.size() >= QueryBytes(shape, rows)) return absl::OkStatus();
  STRATA_RETURN_IF_ERROR(device_->stream().Synchronize());
  STRATA_ASSIGN_OR_RETURN(q_, CudaDevice::AllocatePinned(device_, QueryBytes(shape, rows)));
  return absl::OkStatus();
}

bool HostAttention::Split(absl::Span<const AttentionSequence> sequences) {
  runs_.clear();
  device_sequences_.clear();
  host_sequences_.clear();
  size_t count = 0;
  for (const AttentionSequence& sequence : sequences) count += sequence.runs.size();
  runs_.reserve(count);  // spans point into it
  for (const AttentionSequence& sequence : sequences) {
    for (const bool on_host : {false, true}) {
      const size_t first = runs_.size();
      std::copy_if(sequence.runs.begin(), sequence.runs.end(), std::back_inserter(runs_),
                   [on_host](const PageRun& run) { return run.on_host == on_host; });
      AttentionSequence part = sequence;
      part.runs = absl::MakeConstSpan(runs_).subspan(first);
      if (!on_host) device_sequences_.push_back(part);
      if (on_host && !part.runs.empty()) host_sequences_.push_back(part);
    }
  }
  return !host_sequences_.empty();
}

absl::Status HostAttention::Begin(const AttentionShape& shape, int32_t rows, const float* q) {
  STRATA_RETURN_IF_ERROR(Reserve(shape, rows));
  shape_ = shape;
  rows_ = rows;
  STRATA_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(q_.data(), q, QueryBytes(shape, rows),
                                              cudaMemcpyDeviceToHost, device_->stream().get()));
  return q_here_.Record(device_->stream());
}

absl::Status HostAttention::Finish(AttentionStates* states) {
  STRATA_RETURN_IF_ERROR(q_here_.Synchronize());
  states_.Reset(rows_, shape_.query_heads, shape_.head_dim);
  host_->Attend(shape_, reinterpret_cast<const float*>(q_.data()), host_sequences_, &states_);
  const size_t count = size_t{1} * rows_ * shape_.query_heads;
  const UploadRing::Part parts[] = {
      {states_.o.data(), count * shape_.head_dim * sizeof(float)},
      {states_.m.data(), count * sizeof(float)},
      {states_.l.data(), count * sizeof(float)},
  };
  const void* at[3] = {};
  STRATA_RETURN_IF_ERROR(uploads_.Put(parts, absl::MakeSpan(at)));
  // The merge only reads them.
  states->o = const_cast<float*>(static_cast<const float*>(at[0]));
  states->m = const_cast<float*>(static_cast<const float*>(at[1]));
  states->l = const_cast<float*>(static_cast<const float*>(at[2]));
  return absl::OkStatus();
}

}  // namespace strata::cuda
