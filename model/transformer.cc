#include "model/transformer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace strata {
namespace {

const float* DataOrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

absl::StatusOr<Transformer> Transformer::Create(const ModelConfig* config,
                                                const ModelWeights* weights, Backend* backend,
                                                int32_t max_rows) {
  STRATA_CHECK(max_rows >= 1);
  Transformer transformer(config, weights, backend, max_rows);
  STRATA_RETURN_IF_ERROR(transformer.AllocateScratch());
  return transformer;
}

size_t Transformer::ScratchBytes(const ModelConfig& config, int32_t max_rows) {
  const int64_t q_width = int64_t{config.query_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.kv_heads} * config.head_dim;
  const int64_t widths =
      int64_t{2} * config.width + 3 * q_width + 2 * kv_width + int64_t{3} * config.ffn_width;
  return static_cast<size_t>(widths) * max_rows * sizeof(float);
}

absl::Status Transformer::AllocateScratch() {
  const int64_t q_width = int64_t{config_->query_heads} * config_->head_dim;
  const int64_t kv_width = int64_t{config_->kv_heads} * config_->head_dim;
  const std::pair<float**, int64_t> parts[] = {
      {&scratch_.residual, config_->width},
      {&scratch_.normed, config_->width},
      {&scratch_.qkv, q_width + 2 * kv_width},
      {&scratch_.q, q_width},
      {&scratch_.attended, q_width},
      {&scratch_.gate_up, int64_t{2} * config_->ffn_width},
      {&scratch_.activated, config_->ffn_width},
  };
  constexpr size_t kLine = 64 / sizeof(float);
  const auto floats = [this](int64_t width) {
    return (static_cast<size_t>(width) * max_rows_ + kLine - 1) / kLine * kLine;
  };
  size_t total = 0;
  for (const auto& [matrix, width] : parts) total += floats(width);
  STRATA_ASSIGN_OR_RETURN(scratch_.memory, AlignedBuffer::Allocate(total * sizeof(float)));
  auto* next = reinterpret_cast<float*>(scratch_.memory.data());
  for (const auto& [matrix, width] : parts) {
    *matrix = next;
    next += floats(width);
  }
  states_.Reset(max_rows_, config_->query_heads, config_->head_dim);
  narrowed_.reserve(max_rows_);
  return absl::OkStatus();
}

absl::Status Transformer::Check(const ForwardBatch& batch) const {
  const size_t rows = batch.tokens.size();
  if (rows < 1 || rows > static_cast<size_t>(max_rows_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows, " rows, allowed are 1 to ", max_rows_));
  }
  if (batch.positions.size() != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows, " tokens has ", batch.positions.size(), " positions"));
  }
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= config_->vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is outside the vocabulary of ", config_->vocab_size));
    }
  }
  int32_t previous = -1;
  for (const int32_t row : batch.logit_rows) {
    if (row <= previous || row >= static_cast<int32_t>(rows)) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit row ", row, " after ", previous, " in a step of ", rows, " rows"));
    }
    previous = row;
  }
  return absl::OkStatus();
}

void Transformer::ProjectAndAppend(const ForwardBatch& batch, int32_t layer, const KvBasis& basis,
                                   const LayerKv& kv) {
  const LayerWeights& weights = weights_->layers[layer];
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  linear_->RmsNorm(scratch_.residual, weights.attention_norm.data(), rows, config_->width,
                   config_->norm_epsilon, scratch_.normed);
  linear_->Matmul(*weights.qkv, scratch_.normed, rows, DataOrNull(weights.qkv_bias),
                  /*accumulate=*/false, scratch_.qkv);
  RopeAppendArgs args;
  args.rows = rows;
  args.query_heads = config_->query_heads;
  args.kv_heads = config_->kv_heads;
  args.head_dim = config_->head_dim;
  args.qkv = scratch_.qkv;
  args.positions = batch.positions.data();
  args.q_norm = DataOrNull(weights.q_norm);
  args.k_norm = DataOrNull(weights.k_norm);
  args.norm_epsilon = config_->norm_epsilon;
  args.rope = {config_->rope_pairing, config_->rope_dim, config_->rope_frequency.data(),
               config_->rope_magnitude};
  args.rotate_k = basis.rotate_k;
  args.rotate_v = basis.rotate_v;
  args.k_scale = basis.KScale(layer);
  args.targets = kv.targets.data();
  args.q = scratch_.q;
  linear_->RopeAppend(args);
}

void Transformer::Attend(absl::Span<const AttentionSequence> sequences, int32_t rows,
                         const KvBasis& basis) {
  const AttentionShape shape = {config_->query_heads, config_->kv_heads, config_->head_dim};
  states_.Reset(rows, config_->query_heads, config_->head_dim);
  attention_->Attend(shape, scratch_.q, sequences, &states_);
  FinishStates(states_, scratch_.attended);
  if (basis.rotate_v) {
    linear_->UnrotateHeads(rows, config_->query_heads, config_->head_dim, scratch_.attended);
  }
}

void Transformer::FeedForward(const LayerWeights& layer, int32_t rows) {
  linear_->RmsNorm(scratch_.residual, layer.ffn_norm.data(), rows, config_->width,
                   config_->norm_epsilon, scratch_.normed);
  linear_->Matmul(*layer.gate_up, scratch_.normed, rows, nullptr, /*accumulate=*/false,
                  scratch_.gate_up);
  linear_->SwiGlu(scratch_.gate_up, rows, config_->ffn_width, scratch_.activated);
  linear_->Matmul(*layer.down, scratch_.activated, rows, nullptr, /*accumulate=*/true,
                  scratch_.residual);
}

void Transformer::NarrowToLogitRows(absl::Span<const int32_t> logit_rows,
                                    absl::Span<const AttentionSequence> sequences) {
  narrowed_.clear();
  const size_t q_width = size_t{1} * config_->query_heads * config_->head_dim;
  const size_t width = config_->width;
  const AttentionSequence* sequence = sequences.begin();
  for (size_t i = 0; i < logit_rows.size(); ++i) {
    const int32_t row = logit_rows[i];
    // Ascending rows: i <= row, so nothing that is still needed is overwritten.
    std::memmove(scratch_.q + i * q_width, scratch_.q + row * q_width, q_width * sizeof(float));
    std::memmove(scratch_.residual + i * width, scratch_.residual + row * width,
                 width * sizeof(float));
    while (row >= sequence->first_row + sequence->rows) ++sequence;
    const bool extends = i > 0 && row == logit_rows[i - 1] + 1 && row > sequence->first_row;
    if (extends) {
      ++narrowed_.back().rows;
    } else {
      narrowed_.push_back({static_cast<int32_t>(i), 1,
                           sequence->first_position + (row - sequence->first_row), sequence->runs});
    }
  }
}

absl::Status Transformer::Forward(const ForwardBatch& batch, const KvBasis& basis, KvStep* kv,
                                  float* logits, const QueryObserver& observe) {
  STRATA_RETURN_IF_ERROR(Check(batch));
  auto rows = static_cast<int32_t>(batch.tokens.size());
  linear_->EmbedRows(*weights_->embedding, batch.tokens, scratch_.residual);
  for (int32_t l = 0; l < config_->layers; ++l) {
    const LayerWeights& layer = weights_->layers[l];
    STRATA_ASSIGN_OR_RETURN(const LayerKv layer_kv, kv->BeginLayer(l));
    STRATA_CHECK(static_cast<int32_t>(layer_kv.targets.size()) == rows);
    ProjectAndAppend(batch, l, basis, layer_kv);
    if (observe) observe(l, rows, scratch_.q);
    absl::Span<const AttentionSequence> sequences = layer_kv.sequences;
    // Past the last layer's K and V only the rows whose logits are wanted matter.
    if (l == config_->layers - 1 && batch.logit_rows.size() < batch.tokens.size()) {
      NarrowToLogitRows(batch.logit_rows, sequences);
      sequences = narrowed_;
      rows = static_cast<int32_t>(batch.logit_rows.size());
      if (rows == 0) return absl::OkStatus();
    }
    Attend(sequences, rows, basis);
    linear_->Matmul(*layer.attention_output, scratch_.attended, rows, nullptr,
                    /*accumulate=*/true, scratch_.residual);
    FeedForward(layer, rows);
  }
  linear_->RmsNorm(scratch_.residual, weights_->output_norm.data(), rows, config_->width,
                   config_->norm_epsilon, scratch_.normed);
  linear_->Matmul(weights_->Output(), scratch_.normed, rows, nullptr,
                  /*accumulate=*/false, logits);
  return absl::OkStatus();
}

}  // namespace strata
