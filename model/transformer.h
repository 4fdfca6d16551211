#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "cache/layout/kv_basis.h"
#include "kernels/backend.h"
#include "kernels/kv_step.h"
#include "model/model.h"
#include "model/model_config.h"
#include "model/output_stage.h"
#include "model/weights.h"

namespace strata {

// Sees the queries of a layer as attention will: [rows][query_heads][head_dim], after RoPE, in the
// stored basis, times 1/sqrt(head_dim); on the host.
using QueryObserver = std::function<void(int32_t layer, int32_t rows, const float* q)>;

// The forward pass. Borrows config, weights and backend; owns the scratch, taken once for the
// largest step, in the device's memory. One call at a time.
class Transformer {
 public:
  // ResourceExhausted when the scratch cannot be allocated. The basis is the plain one until
  // SetBasis.
  static absl::StatusOr<Transformer> Create(const ModelConfig* config, const ModelWeights* weights,
                                            Backend* backend, int32_t max_rows);

  // What Create allocates for a step's activations, but for rounding.
  static size_t ScratchBytes(const ModelConfig& config, int32_t max_rows);

  int32_t max_rows() const { return max_rows_; }
  DeviceMemory* memory() const { return memory_; }

  // The basis in which later calls of Forward store K and V.
  absl::Status SetBasis(const KvBasis& basis);

  // The contracts of Model::draws_tokens and Model::Forward.
  bool draws_tokens() const { return output_->draws_tokens(); }
  absl::Status Forward(const ForwardBatch& batch, KvStep* kv, float* logits,
                       const QueryObserver& observe = nullptr);

 private:
  // Scratch matrices of max_rows rows each.
  struct Scratch {
    float* residual = nullptr;
    float* normed = nullptr;  // also the FFN's input
    float* qkv = nullptr;
    float* q = nullptr;
    float* attended = nullptr;
    float* gate_up = nullptr;
    float* activated = nullptr;
  };
  // Steps of so many rows are recorded: larger ones keep a device busy for longer than their calls
  // take, and each number of rows has recordings of its own.
  static constexpr int32_t kRecordedRowsMax = 16;

  Transformer(const ModelConfig* config, const ModelWeights* weights, Backend* backend,
              int32_t max_rows)
      : config_(config),
        weights_(weights),
        linear_(backend->linear.get()),
        attention_(backend->attention.get()),
        memory_(backend->memory.get()),
        max_rows_(max_rows) {}

  absl::Status AllocateScratch();
  absl::Status Check(const ForwardBatch& batch) const;
  absl::Status Enqueue(const ForwardBatch& batch, KvStep* kv, float* logits,
                       const QueryObserver& observe);
  // Calls `body`, which enqueues the same work whenever stretch, rows and narrowing are the same,
  // or replays what it enqueued.
  template <typename Body>
  void Recorded(int32_t stretch, int32_t rows, const Body& body);
  void Project(const LayerWeights& layer, int32_t rows);
  void Append(const ForwardBatch& batch, int32_t layer, const LayerKv& kv);
  absl::Status Observe(const QueryObserver& observe, int32_t layer, int32_t rows);
  void Attend(absl::Span<const AttentionSequence> sequences, int32_t rows);
  void FinishAttention(const LayerWeights& layer, int32_t rows);
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
  DeviceMemory* memory_;
  int32_t max_rows_;
  Buffer scratch_memory_;
  Scratch scratch_;
  std::optional<OutputStage> output_;  // set by Create
  DeviceFloats rope_frequency_;
  bool rotate_k_ = false;
  bool rotate_v_ = false;
  DeviceFloats k_scale_;                // [layer][kv_head][head_dim]; empty: all ones
  bool narrowed_rows_ = false;          // in the step under way
  std::unique_ptr<Recorder> recorder_;  // before what it records goes
  std::vector<float> observed_;         // queries on the host
  std::vector<AttentionSequence> narrowed_;
};

}  // namespace strata
