#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "kernels/backend.h"
#include "model/device_draws.h"

namespace strata {

// The end of a forward pass: logits of the last rows, and of those what was asked for, a token that
// the device draws or the row itself on the host. A row that is drawn does not cross the link. Owns
// what it needs of the device's memory; borrows the backend. One call at a time.
class OutputStage {
 public:
  // For steps of up to `max_rows` rows. ResourceExhausted when memory cannot be had.
  static absl::StatusOr<OutputStage> Create(Backend* backend, int32_t vocab_size, int32_t max_rows);

  bool draws_tokens() const { return sampler_ != nullptr; }

  // InvalidArgument for draws (null: none) of rows that a step of `rows` rows of logits lacks, or
  // that nobody here can make.
  absl::Status Check(const DeviceDraws* draws, int32_t rows) const;

  // normed: [rows][output.in_features()], on the device. logits: [rows][vocab_size], on the host;
  // complete when this returns, but for rows that `draws` names. Draws are only enqueued.
  absl::Status Run(const WeightMatrix& output, const float* normed, int32_t rows,
                   DeviceDraws* draws, float* logits);
  // Hands out the tokens, once the device is done.
  void Answer(DeviceDraws* draws) const;

 private:
  // Rows of logits that are in the device's memory at once: all rows of a step's would be too many
  // bytes.
  static constexpr int32_t kRowsMax = 16;

  OutputStage(Backend* backend, int32_t vocab_size)
      : linear_(backend->linear.get()),
        memory_(backend->memory.get()),
        sampler_(backend->sampler.get()),
        vocab_size_(vocab_size) {}

  // Rows [first, first + count) of a step, whose logits are in logits_. draws: theirs.
  void Draw(absl::Span<const SampleRow> draws, absl::Span<const TokenEdit> edits, int32_t first,
            SampledRow* drawn);
  absl::Status DownloadOthers(absl::Span<const SampleRow> draws, int32_t first, int32_t count,
                              float* logits);

  LinearOps* linear_;
  DeviceMemory* memory_;
  TokenSampler* sampler_;  // may be null
  int32_t vocab_size_;
  Buffer logits_;  // [kRowsMax][vocab_size]; empty where the host's can be written
  Buffer drawn_;   // SampledRow [max_rows], pinned
};

}  // namespace strata
