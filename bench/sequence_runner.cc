#include "bench/sequence_runner.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"

namespace strata::bench {

absl::Status SequenceRunner::Step(absl::Span<const int32_t> tokens,
                                  absl::Span<const int32_t> logit_rows) {
  const int32_t rows = static_cast<int32_t>(tokens.size());
  positions_.resize(rows);
  std::iota(positions_.begin(), positions_.end(), position_);
  logits_.resize(logit_rows.size() * model_->config().vocab_size);
  cache_->Poll();
  const StepSlice slice{sequence_, position_, rows};
  STRATA_ASSIGN_OR_RETURN(KvStep * step, cache_->PrepareStep({&slice, 1}));
  const absl::Status status =
      model_->Forward({tokens, positions_, logit_rows}, step, logits_.data());
  cache_->FinishStep(status.ok());
  if (status.ok()) position_ += rows;
  return status;
}

absl::Status SequenceRunner::Prefill(absl::Span<const int32_t> tokens,
                                     const LogitsCallback& callback) {
  const int32_t piece = cache_->options().piece_tokens;
  std::vector<int32_t> rows;
  while (!tokens.empty()) {
    const int32_t first = position_;
    const auto take =
        std::min<size_t>(tokens.size(), static_cast<size_t>(piece - position_ % piece));
    if (callback) {
      rows.resize(take);
      std::iota(rows.begin(), rows.end(), 0);
    }
    STRATA_RETURN_IF_ERROR(Step(tokens.subspan(0, take), rows));
    if (callback) callback(first, logits_);
    tokens.remove_prefix(take);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> SequenceRunner::Decode(int32_t token) {
  const int32_t row = 0;
  STRATA_RETURN_IF_ERROR(Step({&token, 1}, {&row, 1}));
  return absl::Span<const float>(logits_);
}

}  // namespace strata::bench
