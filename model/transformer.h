#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "cache/layout/kv_basis.h"
#include "kernels/backend.h"
#include "kernels/kv_step.h"
#include "model/model.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace strata {

// Sees the queries of a layer as attention will: [rows][query_heads][head_dim], after RoPE, in the
// stored basis, times 1/sqrt(head_dim).
using QueryObserver = std::function<void(int32_t layer, int32_t rows, const float* q)>;

// The forward pass. Borrows config, weights and backend; owns the scratch, taken once for the
// largest step. One call at a time.
class Transformer {
 public:
  // ResourceExhausted when the scratch cannot be allocated.
  static absl::StatusOr<Transformer> Create(const ModelConfig* config, const ModelWeights* weights,
                                            Backend* backend, int32_t max_rows);

  // What Create allocates for a step's activations, but for rounding.
  static size_t ScratchBytes(const ModelConfig& config, int32_t max_rows);

  int32_t max_rows() const { return max_rows_; }

  // The contract of Model::Forward, with K and V stored in `basis`.
  absl::Status Forward(const ForwardBatch& batch, const KvBasis& basis, KvStep* kv, float* logits,
                       const QueryObserver& observe = nullptr);

 private:
  // Scratch matrices of max_rows rows each, in one buffer.
  struct Scratch {
    AlignedBuffer memory;
    float* residual = nullptr;
    float* normed = nullptr;  // also the FFN's input
    float* qkv = nullptr;
    float* q = nullptr;
    float* attended = nullptr;
    float* gate_up = nullptr;
    float* activated = nullptr;
  };

  Transformer(const ModelConfig* config, const ModelWeights* weights, Backend* backend,
              int32_t max_rows)
      : config_(config),
        weights_(weights),
        linear_(backend->linear.get()),
        attention_(backend->attention.get()),
        max_rows_(max_rows) {}

  absl::Status AllocateScratch();
  absl::Status Check(const ForwardBatch& batch) const;
  void ProjectAndAppend(const ForwardBatch& batch, int32_t layer, const KvBasis& basis,
                        const LayerKv& kv);
  void Attend(absl::Span<const AttentionSequence> sequences, int32_t rows, const KvBasis& basis);
  void FeedForward(const LayerWeights& layer, int32_t rows);
  // Keeps only the rows whose logits are wanted, in order: the queries, the residual and, in
  // narrowed_, what they attend to. K and V of the other rows are in the cache by then, and nothing
  // reads more of them.
  void NarrowToLogitRows(absl::Span<const int32_t> logit_rows,
                         absl::Span<const AttentionSequence> sequences);

  const ModelConfig* config_;
  const ModelWeights* weights_;
  LinearOps* linear_;
  AttentionBackend* attention_;
  int32_t max_rows_;
  Scratch scratch_;
  PartialStates states_;
  std::vector<AttentionSequence> narrowed_;
};

}  // namespace strata
