#include "kernels/cuda/page_stage.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {
namespace {

// Lists of the copies of a few thousand pages.
constexpr size_t kListBytes = size_t{128} << 10;

}  // namespace

PageStage::PageStage(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)), uploads_(device_, &stream_) {}

PageStage::~PageStage() {
  if (stream_.get() != nullptr) stream_.Synchronize().IgnoreError();  // its buffers may be in use
}

absl::Status PageStage::Reserve(size_t bytes) {
  STRATA_CHECK(half_bytes_ == 0);
  const size_t half = bytes / 2 / kDeviceAlignment * kDeviceAlignment;
  if (half == 0) return absl::OkStatus();
  STRATA_ASSIGN_OR_RETURN(stream_, Stream::Create());
  for (int i = 0; i < 2; ++i) {
    STRATA_ASSIGN_OR_RETURN(here_[i], Event::Create(Event::Wait::kSpin));
    STRATA_ASSIGN_OR_RETURN(passed_[i], Event::Create(Event::Wait::kSpin));
  }
  STRATA_RETURN_IF_ERROR(uploads_.Reserve(kListBytes));
  STRATA_ASSIGN_OR_RETURN(memory_, CudaDevice::AllocateDevice(device_, 2 * half));
  half_bytes_ = half;
  return absl::OkStatus();
}

size_t PageStage::HostPages(absl::Span<const AttentionSequence> sequences) {
  size_t pages = 0;
  for (const AttentionSequence& sequence : sequences) {
    for (const PageRun& run : sequence.runs) pages += run.on_host ? run.page_count : 0;
  }
  return pages;
}

void PageStage::CopySequences(absl::Span<const AttentionSequence> sequences) {
  size_t runs = 0;
  for (const AttentionSequence& sequence : sequences) runs += sequence.runs.size();
  runs_.clear();
  runs_.reserve(runs);  // spans point into it
  views_.clear();
  views_.reserve(HostPages(sequences));
  sequences_.assign(sequences.begin(), sequences.end());
  for (AttentionSequence& sequence : sequences_) {
    const size_t first = runs_.size();
    for (PageRun run : sequence.runs) {
      if (run.on_host) {
        const size_t view = views_.size();
        views_.insert(views_.end(), run.pages, run.pages + run.page_count);
        run.pages = views_.data() + view;
      }
      runs_.push_back(run);
    }
    sequence.runs = absl::MakeConstSpan(runs_).subspan(first);
  }
}

const std::byte* PageStage::Add(const std::byte* source, size_t bytes) {
  std::byte* target = memory_.data() + half_ * half_bytes_ + used_;
  copies_.push_back({source, target, bytes});
  used_ += AlignDevice(bytes);
  return target;
}

// A page is gathered whole or not at all.
void PageStage::AddPages(const PageRun& run) {
  KvPageView* pages = views_.data() + (run.pages - views_.data());
  const bool refined = run.read_k == KvKind::kI4 || run.read_v == KvKind::kI4;
  const size_t base = run.stored.BaseBytes();
  const size_t refine = refined ? run.stored.RefineBytes() : 0;
  for (int32_t i = 0; i < run.page_count; ++i) {
    if (used_ + AlignDevice(base) + AlignDevice(refine) > half_bytes_) return;
    pages[i].base = Add(pages[i].base, base);
    if (refine > 0) pages[i].refine = Add(pages[i].refine, refine);
  }
}

absl::Status PageStage::Gather() {
  // Never recorded in the beginning: then there is nothing to wait for.
  STRATA_RETURN_IF_ERROR(passed_[half_].Delay(stream_));
  STRATA_ASSIGN_OR_RETURN(const GatherCopy* copies, uploads_.Put(absl::MakeConstSpan(copies_)));
  STRATA_CUDA_RETURN_IF_ERROR(
      LaunchGather(copies, static_cast<int32_t>(copies_.size()), stream_.get()));
  STRATA_RETURN_IF_ERROR(here_[half_].Record(stream_));
  return here_[half_].Delay(device_->stream());
}

absl::StatusOr<absl::Span<const AttentionSequence>> PageStage::Stage(
    absl::Span<const AttentionSequence> sequences) {
  gathered_ = false;
  if (half_bytes_ == 0 || HostPages(sequences) == 0) return sequences;
  CopySequences(sequences);
  half_ = 1 - half_;
  used_ = 0;
  copies_.clear();
  by_rows_.clear();
  for (const AttentionSequence& sequence : sequences_) by_rows_.push_back(&sequence);
  std::stable_sort(by_rows_.begin(), by_rows_.end(),
                   [](const auto* a, const auto* b) { return a->rows > b->rows; });
  for (const AttentionSequence* sequence : by_rows_) {
    for (const PageRun& run : sequence->runs) {
      if (run.on_host) AddPages(run);
    }
  }
  if (!copies_.empty()) {
    STRATA_RETURN_IF_ERROR(Gather());
    gathered_ = true;
  }
  return sequences_;
}

absl::Status PageStage::Passed() {
  return gathered_ ? passed_[half_].Record(device_->stream()) : absl::OkStatus();
}

}  // namespace strata::cuda
