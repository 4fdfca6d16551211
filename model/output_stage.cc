#include "model/output_stage.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace strata {

absl::StatusOr<OutputStage> OutputStage::Create(Backend* backend, int32_t vocab_size,
                                                int32_t max_rows) {
  OutputStage stage(backend, vocab_size);
  if (stage.memory_->host_accessible()) {
    STRATA_CHECK(!stage.draws_tokens());
    return stage;
  }
  const int32_t rows = std::min(max_rows, kRowsMax);
  STRATA_ASSIGN_OR_RETURN(
      stage.logits_,
      stage.memory_->AllocateDevice(sizeof(float) * rows * static_cast<size_t>(vocab_size)));
  if (!stage.draws_tokens()) return stage;
  STRATA_RETURN_IF_ERROR(stage.sampler_->Reserve(rows, vocab_size));
  STRATA_ASSIGN_OR_RETURN(stage.drawn_,
                          stage.memory_->AllocatePinned(sizeof(SampledRow) * max_rows));
  return stage;
}

absl::Status OutputStage::Check(const DeviceDraws* draws, int32_t rows) const {
  if (draws == nullptr || draws->requests().empty()) return absl::OkStatus();
  if (!draws_tokens()) {
    return absl::InvalidArgumentError("a step has draws, and this device makes none");
  }
  const int32_t first = draws->requests().front().logits_index;
  const int32_t last = draws->requests().back().logits_index;  // they ascend
  if (first < 0 || last >= rows) {
    return absl::InvalidArgumentError(absl::StrCat("draws from rows ", first, " to ", last,
                                                   " of logits, of which a step has ", rows));
  }
  return absl::OkStatus();
}

absl::Status OutputStage::Run(const WeightMatrix& output, const float* normed, int32_t rows,
                              DeviceDraws* draws, float* logits) {
  if (logits_.size() == 0) {
    linear_->Matmul(output, normed, rows, nullptr, /*accumulate=*/false, logits);
    return absl::OkStatus();
  }
  absl::Span<const SampleRow> left;
  absl::Span<const TokenEdit> edits;
  if (draws != nullptr) {
    draws->Prepare(vocab_size_);
    left = draws->rows();
    edits = draws->edits();
  }
  auto* drawn = reinterpret_cast<SampledRow*>(drawn_.data());
  for (int32_t first = 0; first < rows; first += kRowsMax) {
    const int32_t count = std::min(rows - first, kRowsMax);
    linear_->Matmul(output, normed + size_t{1} * first * output.in_features(), count, nullptr,
                    /*accumulate=*/false, reinterpret_cast<float*>(logits_.data()));
    const auto beyond = std::find_if(left.begin(), left.end(), [&](const SampleRow& row) {
      return row.logits_row >= first + count;
    });
    const auto here = left.first(static_cast<size_t>(beyond - left.begin()));
    Draw(here, edits, first, drawn);
    STRATA_RETURN_IF_ERROR(DownloadOthers(here, first, count, logits));
    drawn += here.size();
    left.remove_prefix(here.size());
  }
  return absl::OkStatus();
}

void OutputStage::Draw(absl::Span<const SampleRow> draws, absl::Span<const TokenEdit> edits,
                       int32_t first, SampledRow* drawn) {
  if (draws.empty()) return;
  std::array<SampleRow, kRowsMax> rows;
  std::copy(draws.begin(), draws.end(), rows.begin());
  for (SampleRow& row : rows) row.logits_row -= first;
  sampler_->Sample(reinterpret_cast<const float*>(logits_.data()), vocab_size_,
                   absl::MakeSpan(rows).first(draws.size()), edits, drawn);
}

absl::Status OutputStage::DownloadOthers(absl::Span<const SampleRow> draws, int32_t first,
                                         int32_t count, float* logits) {
  const size_t row_bytes = sizeof(float) * vocab_size_;
  int32_t next = first;
  const auto download_until = [&](int32_t end) -> absl::Status {
    if (next == end) return absl::OkStatus();
    return memory_->Download(logits_.data() + row_bytes * (next - first), row_bytes * (end - next),
                             logits + size_t{1} * next * vocab_size_);
  };
  for (const SampleRow& draw : draws) {
    STRATA_RETURN_IF_ERROR(download_until(draw.logits_row));
    next = draw.logits_row + 1;
  }
  return download_until(first + count);
}

void OutputStage::Answer(DeviceDraws* draws) const {
  if (draws == nullptr) return;
  const auto* drawn = reinterpret_cast<const SampledRow*>(drawn_.data());
  draws->Answer({drawn, draws->requests().size()});
}

}  // namespace strata
