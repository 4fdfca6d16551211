#include "kernels/cuda/attention_cuda.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/host_attention.h"
#include "kernels/cuda/page_stage.h"
#include "kernels/cuda/upload_ring.h"
#include "kernels/cuda/warm_measure.h"

namespace strata::cuda {
namespace {

// States that let a decode step of one long sequence fill a large GPU with splits: 256 blocks of 8
// queries for 8 KV heads. Wider steps have as many as they need.
constexpr int64_t kStatesMin = 16384;

// Bytes of lists that a step's layers use up before they are read: what 64k tokens of context and
// some more take. Longer contexts grow the ring once.
constexpr size_t kListBytes = size_t{256} << 10;

class CudaAttention final : public AttentionBackend {
 public:
  CudaAttention(std::shared_ptr<CudaDevice> device, WarmAttention warm, size_t gather_bytes,
                std::unique_ptr<AttentionBackend> host)
      : device_(std::move(device)),
        warm_(warm),
        gather_bytes_(gather_bytes),
        host_(std::move(host)),
        host_attention_(device_, host_.get()),
        stage_(device_),
        uploads_(device_) {}
  ~CudaAttention() override { device_->Synchronize().IgnoreError(); }  // its buffers may be in use

  absl::Status Reserve(const AttentionShape& shape, int32_t rows) override;
  void Attend(const AttentionShape& shape, const float* q,
              absl::Span<const AttentionSequence> sequences, PartialStates* states) override;
  void AttendAll(const AttentionShape& shape, int32_t rows, const float* q,
                 absl::Span<const AttentionSequence> sequences, float* out) override;
  std::optional<WarmAttentionFacts> warm_attention() const override { return facts_; }

 private:
  static int64_t StateLimit(const AttentionShape& shape, int32_t rows) {
    return std::max(AttentionStatesMin(rows, shape.query_heads), kStatesMin);
  }
  absl::Status ReserveStates(const AttentionShape& shape, int32_t rows);
  absl::Status SettleWarm(const AttentionShape& shape);
  absl::Status Run(const AttentionShape& shape, int32_t rows, const float* q,
                   absl::Span<const AttentionSequence> sequences, const AttentionStates& out);
  // Over the pages that kernels read; says what the merge is to fold.
  absl::Status LaunchWork(const AttentionShape& shape, int32_t rows, const float* q,
                          absl::Span<const AttentionSequence> sequences, AttentionMerge* merge);
  absl::Status AttendInto(const AttentionShape& shape, const float* q,
                          absl::Span<const AttentionSequence> sequences, PartialStates* states);

  const std::shared_ptr<CudaDevice> device_;
  const WarmAttention warm_;
  const size_t gather_bytes_;
  const std::unique_ptr<AttentionBackend> host_;
  HostAttention host_attention_;
  PageStage stage_;
  std::optional<WarmAttentionFacts> facts_;
  UploadRing uploads_;
  int32_t prepared_ = 0;              // head dim
  AttentionDevice attention_device_;  // for that head dim
  Buffer states_;                     // of the work items
  AttentionLists lists_;
};

absl::Status CudaAttention::Reserve(const AttentionShape& shape, int32_t rows) {
  STRATA_RETURN_IF_ERROR(ReserveStates(shape, rows));
  if (!facts_.has_value()) STRATA_RETURN_IF_ERROR(SettleWarm(shape));
  return facts_->on_host ? host_attention_.Reserve(shape, rows) : absl::OkStatus();
}

absl::Status CudaAttention::SettleWarm(const AttentionShape& shape) {
  facts_ = WarmAttentionFacts{};
  if (warm_ == WarmAttention::kAuto) {
    STRATA_ASSIGN_OR_RETURN(facts_, MeasureWarmAttention(shape, device_, this, host_.get()));
  } else {
    facts_->on_host = warm_ == WarmAttention::kHost;
  }
  if (facts_->on_host) return absl::OkStatus();
  facts_->gather_bytes = gather_bytes_;
  return stage_.Reserve(gather_bytes_);
}

absl::Status CudaAttention::ReserveStates(const AttentionShape& shape, int32_t rows) {
  STRATA_RETURN_IF_ERROR(device_->Bind());
  if (prepared_ != shape.head_dim) {
    STRATA_CUDA_RETURN_IF_ERROR(PrepareAttention(shape.head_dim, &attention_device_));
    prepared_ = shape.head_dim;
  }
  STRATA_RETURN_IF_ERROR(uploads_.Reserve(kListBytes));
  const size_t bytes =
      sizeof(float) * AttentionStateFloats(StateLimit(shape, rows), shape.head_dim);
  if (states_.size() >= bytes) return absl::OkStatus();
  STRATA_RETURN_IF_ERROR(device_->Synchronize());
  states_ = Buffer();
  STRATA_ASSIGN_OR_RETURN(states_, CudaDevice::AllocateDevice(device_, bytes));
  return absl::OkStatus();
}

absl::Status CudaAttention::Run(const AttentionShape& shape, int32_t rows, const float* q,
                                absl::Span<const AttentionSequence> sequences,
                                const AttentionStates& out) {
  STRATA_RETURN_IF_ERROR(Reserve(shape, rows));
  const bool shared = facts_->on_host && host_attention_.Split(sequences);
  if (shared) {
    STRATA_RETURN_IF_ERROR(host_attention_.Begin(shape, rows, q));
    sequences = host_attention_.on_device();
  } else {
    STRATA_ASSIGN_OR_RETURN(sequences, stage_.Stage(sequences));
  }
  AttentionMerge merge{};
  STRATA_RETURN_IF_ERROR(LaunchWork(shape, rows, q, sequences, &merge));
  STRATA_RETURN_IF_ERROR(stage_.Passed());
  // The CPU's share, while the device works on what was just enqueued.
  if (shared) STRATA_RETURN_IF_ERROR(host_attention_.Finish(&merge.other));
  merge.out = out;
  STRATA_CUDA_RETURN_IF_ERROR(LaunchAttentionMerge(merge, device_->stream().get()));
  return absl::OkStatus();
}

absl::Status CudaAttention::LaunchWork(const AttentionShape& shape, int32_t rows, const float* q,
                                       absl::Span<const AttentionSequence> sequences,
                                       AttentionMerge* merge) {
  PlanAttention(shape, sequences, {StateLimit(shape, rows), attention_device_}, &lists_);
  const auto part = [](const auto& list) {
    return UploadRing::Part{list.data(), list.size() * sizeof(list[0])};
  };
  const UploadRing::Part parts[] = {part(lists_.pages), part(lists_.splits), part(lists_.work),
                                    part(lists_.tiles)};
  const void* at[4] = {};
  STRATA_RETURN_IF_ERROR(uploads_.Put(parts, absl::MakeSpan(at)));

  AttentionLaunch launch = LaunchOf(shape, lists_);
  launch.q = q;
  launch.pages = static_cast<const AttentionPage*>(at[0]);
  launch.splits = static_cast<const AttentionSplit*>(at[1]);
  launch.work = static_cast<const AttentionWork*>(at[2]);
  launch.states = reinterpret_cast<float*>(states_.data());
  STRATA_CUDA_RETURN_IF_ERROR(LaunchAttention(launch, device_->stream().get()));

  *merge = MergeOf(shape, lists_);
  merge->tiles = static_cast<const AttentionTile*>(at[3]);
  merge->states = launch.states;
  return absl::OkStatus();
}

void CudaAttention::AttendAll(const AttentionShape& shape, int32_t rows, const float* q,
                              absl::Span<const AttentionSequence> sequences, float* out) {
  int32_t covered = 0;
  for (const AttentionSequence& sequence : sequences) covered += sequence.rows;
  if (covered < rows) {
    const size_t bytes = sizeof(float) * rows * shape.query_heads * shape.head_dim;
    device_->Note(cudaMemsetAsync(out, 0, bytes, device_->stream().get()), "cudaMemsetAsync");
  }
  device_->Note(Run(shape, rows, q, sequences, {out, nullptr, nullptr}));
}

absl::Status CudaAttention::AttendInto(const AttentionShape& shape, const float* q,
                                       absl::Span<const AttentionSequence> sequences,
                                       PartialStates* states) {
  const size_t count = size_t{1} * states->rows * states->heads;
  const size_t floats = count * (states->head_dim + 2);
  STRATA_ASSIGN_OR_RETURN(Buffer merged,
                          CudaDevice::AllocateDevice(device_, floats * sizeof(float)));
  auto* o = reinterpret_cast<float*>(merged.data());
  float* m = o + count * states->head_dim;
  STRATA_RETURN_IF_ERROR(Run(shape, states->rows, q, sequences, {o, m, m + count}));
  std::vector<float> host(floats);
  STRATA_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(host.data(), o, floats * sizeof(float),
                                              cudaMemcpyDeviceToHost, device_->stream().get()));
  STRATA_RETURN_IF_ERROR(device_->Synchronize());
  PartialStates other;
  other.Reset(states->rows, states->heads, states->head_dim);
  const float* next = host.data();
  std::copy_n(next, count * states->head_dim, other.o.begin());
  next += count * states->head_dim;
  std::copy_n(next, count, other.m.begin());
  std::copy_n(next + count, count, other.l.begin());
  MergeStates(other, states);
  return absl::OkStatus();
}

// For tests and tools: serving has no use for states on the host.
void CudaAttention::Attend(const AttentionShape& shape, const float* q,
                           absl::Span<const AttentionSequence> sequences, PartialStates* states) {
  STRATA_CHECK(states->heads == shape.query_heads && states->head_dim == shape.head_dim);
  device_->Note(AttendInto(shape, q, sequences, states));
}

}  // namespace

std::unique_ptr<AttentionBackend> MakeCudaAttention(std::shared_ptr<CudaDevice> device,
                                                    WarmAttention warm, size_t gather_bytes,
                                                    std::unique_ptr<AttentionBackend> host) {
  return std::make_unique<CudaAttention>(std::move(device), warm, gather_bytes, std::move(host));
}

}  // namespace strata::cuda
