#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/sample_types.h"
#include "model/sampler.h"

namespace strata {

// Whether a device draws the token itself (kernels/token_sampler.h), and draws Sampler's: greedy
// choice, temperature, top_k, top_p, min_p, bias, bans and penalties are exact there. typical_p
// weighs tokens by a sum of logarithms, whose bits depend on its order: such a request's logits go
// to the host and to Sampler.
bool DeviceCanSample(const SamplingParams& params, int32_t vocab_size);

// The tokens of one step that its device draws: asked for before Model::Forward, answered by it.
// Keeps its memory from step to step. Engine thread.
class DeviceDraws {
 public:
  struct Request {
    int32_t logits_index = 0;  // into ForwardBatch::logit_rows
    const SamplingParams* params = nullptr;
    SamplingState state;
    bool with_logprob = true;
  };

  // What params point to and states span must live until Forward has returned; a device must be
  // able to sample each, and indices must ascend. Returns where the answer will be.
  int32_t Add(const Request& request);
  void Clear();
  absl::Span<const Request> requests() const { return requests_; }
  const SampledToken& token(int32_t index) const { return tokens_[index]; }

  // For Forward. Prepare takes time where penalties look at many tokens, so it comes when the
  // device has its layers to compute.
  void Prepare(int32_t vocab_size);
  // As kernels want them, one for each request, after Prepare.
  absl::Span<const SampleRow> rows() const { return rows_; }
  absl::Span<const TokenEdit> edits() const { return edits_; }
  void Answer(absl::Span<const SampledRow> drawn);

 private:
  SampleRow PrepareRow(const Request& request);
  void SeeWindow(const SamplingParams& params, const SamplingState& state);
  void PenalizeOutput(const SamplingParams& params, absl::Span<const int32_t> output);
  // The edit of a token in the row being prepared; null for an id outside the vocabulary, which no
  // step of Sampler looks at either. Valid until the next call.
  TokenEdit* EditOf(int64_t id);
  absl::Span<TokenEdit> RowEdits() { return absl::MakeSpan(edits_).subspan(first_edit_); }

  std::vector<Request> requests_;
  std::vector<SampledToken> tokens_;
  std::vector<SampleRow> rows_;
  std::vector<TokenEdit> edits_;
  size_t first_edit_ = 0;         // of the row being prepared
  std::vector<uint32_t> places_;  // by id: 1 + where its edit is among this row's, or 0
};

}  // namespace strata
