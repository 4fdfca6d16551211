#include "model/transformer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace strata {

absl::StatusOr<Transformer> Transformer::Create(const ModelConfig* config,
                                                const ModelWeights* weights, Backend* backend,
                                                int32_t max_rows) {
  STRATA_CHECK(max_rows >= 1);
  Transformer transformer(config, weights, backend, max_rows);
  STRATA_RETURN_IF_ERROR(transformer.AllocateScratch());
  const int32_t q_width = config->query_heads * config->head_dim;
  STRATA_RETURN_IF_ERROR(transformer.linear_->Reserve(
      max_rows, std::max({config->width, q_width, config->ffn_width})));
  STRATA_RETURN_IF_ERROR(transformer.attention_->Reserve(
      {config->query_heads, config->kv_heads, config->head_dim}, max_rows));
  STRATA_ASSIGN_OR_RETURN(transformer.rope_frequency_,
                          DeviceFloats::Upload(config->rope_frequency, transformer.memory_));
  STRATA_ASSIGN_OR_RETURN(transformer.output_,
                          OutputStage::Create(backend, config->vocab_size, max_rows));
  transformer.recorder_ = transformer.memory_->MakeRecorder();
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
  constexpr size_t kLine = 256 / sizeof(float);
  const auto floats = [](int64_t width, int32_t rows) {
    return (static_cast<size_t>(width) * rows + kLine - 1) / kLine * kLine;
  };
  size_t total = 0;
  for (const auto& [matrix, width] : parts) total += floats(width, max_rows_);
  STRATA_ASSIGN_OR_RETURN(scratch_memory_, memory_->AllocateDevice(total * sizeof(float)));
  auto* next = reinterpret_cast<float*>(scratch_memory_.data());
  for (const auto& [matrix, width] : parts) {
    *matrix = next;
    next += floats(width, max_rows_);
  }
  narrowed_.reserve(max_rows_);
  return absl::OkStatus();
}

absl::Status Transformer::SetBasis(const KvBasis& basis) {
  // Nothing of the old scales may be in use when they go.
  STRATA_RETURN_IF_ERROR(memory_->Synchronize());
  STRATA_ASSIGN_OR_RETURN(k_scale_, DeviceFloats::Upload(basis.k_scale, memory_));
  rotate_k_ = basis.rotate_k;
  rotate_v_ = basis.rotate_v;
  recorder_ = memory_->MakeRecorder();  // what was recorded has the old basis
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
  return output_->Check(batch.draws, static_cast<int32_t>(batch.logit_rows.size()));
}

template <typename Body>
void Transformer::Recorded(int32_t stretch, int32_t rows, const Body& body) {
  if (recorder_ == nullptr || rows > kRecordedRowsMax) return body();
  const uint64_t narrowed = narrowed_rows_ ? 1 : 0;
  const uint64_t key = (static_cast<uint64_t>(stretch) << 1 | narrowed) << 8 | rows;
  if (recorder_->Replay(key)) return;
  body();
  recorder_->End();
}

void Transformer::Project(const LayerWeights& layer, int32_t rows) {
  linear_->RmsNorm(scratch_.residual, layer.attention_norm.data(), rows, config_->width,
                   config_->norm_epsilon, scratch_.normed);
  linear_->Matmul(*layer.qkv, scratch_.normed, rows, layer.qkv_bias.data(), /*accumulate=*/false,
                  scratch_.qkv);
}

void Transformer::Append(const ForwardBatch& batch, int32_t layer, const LayerKv& kv) {
  const LayerWeights& weights = weights_->layers[layer];
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  RopeAppendArgs args;
  args.rows = rows;
  args.query_heads = config_->query_heads;
  args.kv_heads = config_->kv_heads;
  args.head_dim = config_->head_dim;
  args.qkv = scratch_.qkv;
  args.positions = batch.positions.data();
  args.q_norm = weights.q_norm.data();
  args.k_norm = weights.k_norm.data();
  args.norm_epsilon = config_->norm_epsilon;
  args.rope = {config_->rope_pairing, config_->rope_dim, rope_frequency_.data(),
               config_->rope_magnitude};
  args.rotate_k = rotate_k_;
  args.rotate_v = rotate_v_;
  if (k_scale_.data() != nullptr) {
    args.k_scale = k_scale_.data() + size_t{1} * layer * config_->kv_heads * config_->head_dim;
  }
  args.targets = kv.targets.data();
  args.q = scratch_.q;
  linear_->RopeAppend(args);
}

absl::Status Transformer::Observe(const QueryObserver& observe, int32_t layer, int32_t rows) {
  if (!observe) return absl::OkStatus();
  const float* q = scratch_.q;
  if (!memory_->host_accessible()) {
    observed_.resize(size_t{1} * rows * config_->query_heads * config_->head_dim);
    STRATA_RETURN_IF_ERROR(
        memory_->Download(q, observed_.size() * sizeof(float), observed_.data()));
    q = observed_.data();
  }
  observe(layer, rows, q);
  return absl::OkStatus();
}

void Transformer::Attend(absl::Span<const AttentionSequence> sequences, int32_t rows) {
  const AttentionShape shape = {config_->query_heads, config_->kv_heads, config_->head_dim};
  attention_->AttendAll(shape, rows, scratch_.q, sequences, scratch_.attended);
}

void Transformer::FinishAttention(const LayerWeights& layer, int32_t rows) {
  if (rotate_v_) {
    linear_->UnrotateHeads(rows, config_->query_heads, config_->head_dim, scratch_.attended);
  }
  linear_->Matmul(*layer.attention_output, scratch_.attended, rows, nullptr, /*accumulate=*/true,
                  scratch_.residual);
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
  // Of the projections only the queries are still needed, and of the normed rows nothing.
  linear_->GatherRows(scratch_.q, logit_rows, config_->query_heads * config_->head_dim,
                      scratch_.qkv);
  linear_->GatherRows(scratch_.residual, logit_rows, config_->width, scratch_.normed);
  std::swap(scratch_.q, scratch_.qkv);
  std::swap(scratch_.residual, scratch_.normed);
  narrowed_.clear();
  const AttentionSequence* sequence = sequences.begin();
  for (size_t i = 0; i < logit_rows.size(); ++i) {
    const int32_t row = logit_rows[i];
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

absl::Status Transformer::Enqueue(const ForwardBatch& batch, KvStep* kv, float* logits,
                                  const QueryObserver& observe) {
  auto rows = static_cast<int32_t>(batch.tokens.size());
  linear_->EmbedRows(*weights_->embedding, batch.tokens, scratch_.residual);
  narrowed_rows_ = false;
  Recorded(0, rows, [&] { Project(weights_->layers[0], rows); });
  for (int32_t l = 0; l < config_->layers; ++l) {
    STRATA_ASSIGN_OR_RETURN(const LayerKv layer_kv, kv->BeginLayer(l));
    STRATA_CHECK(static_cast<int32_t>(layer_kv.targets.size()) == rows);
    Append(batch, l, layer_kv);
    STRATA_RETURN_IF_ERROR(Observe(observe, l, rows));
    absl::Span<const AttentionSequence> sequences = layer_kv.sequences;
    // Past the last layer's K and V only the rows whose logits are wanted matter.
    if (l == config_->layers - 1 && batch.logit_rows.size() < batch.tokens.size()) {
      NarrowToLogitRows(batch.logit_rows, sequences);
      narrowed_rows_ = true;
      sequences = narrowed_;
      rows = static_cast<int32_t>(batch.logit_rows.size());
      if (rows == 0) return absl::OkStatus();
    }
    Attend(sequences, rows);
    // What is the same in every step goes together, from one layer's attention to the next one's.
    Recorded(l + 1, rows, [&] {
      FinishAttention(weights_->layers[l], rows);
      FeedForward(weights_->layers[l], rows);
      if (l + 1 < config_->layers) {
        Project(weights_->layers[l + 1], rows);
      } else {
        linear_->RmsNorm(scratch_.residual, weights_->output_norm.data(), rows, config_->width,
                         config_->norm_epsilon, scratch_.normed);
      }
    });
  }
  return output_->Run(weights_->Output(), scratch_.normed, rows, batch.draws, logits);
}

absl::Status Transformer::Forward(const ForwardBatch& batch, KvStep* kv, float* logits,
                                  const QueryObserver& observe) {
  STRATA_RETURN_IF_ERROR(Check(batch));
  const Scratch scratch = scratch_;
  absl::Status status = Enqueue(batch, kv, logits, observe);
  scratch_ = scratch;  // narrowing swaps
  // The cache takes the step as read and written from here on, an abandoned one too: pages may
  // change places or be encoded on another thread.
  status.Update(memory_->Synchronize());
  if (status.ok()) output_->Answer(batch.draws);
  return status;
}

}  // namespace strata
