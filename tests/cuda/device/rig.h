#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "server/engine/engine.h"
#include "tests/engine/recording_sink.h"

namespace strata {

// A model that watches the logits it hands to the host: how far apart the best two of every row
// were. Another device must give the same greedy tokens while its logits differ by less than half
// of that.
class WatchedModel final : public Model {
 public:
  explicit WatchedModel(Model* model) : model_(model) {}

  const ModelConfig& config() const override { return model_->config(); }
  const Tokenizer& tokenizer() const override { return model_->tokenizer(); }
  const KvBasis& basis() const override { return model_->basis(); }
  uint64_t fingerprint() const override { return model_->fingerprint(); }
  size_t weight_bytes() const override { return model_->weight_bytes(); }
  const std::string& weight_format() const override { return model_->weight_format(); }
  bool draws_tokens() const override { return draws_tokens_ && model_->draws_tokens(); }
  absl::Status Forward(const ForwardBatch& batch, KvStep* kv, float* logits) override;

  // Between requests: whether a device that can draw tokens does.
  void set_draws_tokens(bool draws_tokens) { draws_tokens_ = draws_tokens; }

  // Since the last call.
  float TakeLeastGap() { return std::exchange(least_gap_, std::numeric_limits<float>::infinity()); }
  // The rows of logits since the last call, one after the other.
  std::vector<float> TakeLogits() { return std::exchange(logits_, {}); }

 private:
  void Watch(absl::Span<const float> logits);

  Model* const model_;
  bool draws_tokens_ = true;
  std::vector<float> logits_;
  float least_gap_ = std::numeric_limits<float>::infinity();
};

// A backend, a tiny model on it, and an engine over three tiers of room for four sequences.
class Rig {
 public:
  // Aborts on an error: what is tested comes later.
  Rig(Backend backend, const std::string& model_path, const std::string& directory,
      const PositionalPolicy& policy);

  struct Result {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    std::string text;
    SequenceUsage usage;
    std::optional<FinishReason> reason;
    absl::Status error;
  };
  static Request Make(int32_t prompt, int32_t max_tokens, uint32_t salt);
  std::shared_ptr<RecordingSink> Submit(Request request, uint64_t* ticket = nullptr);
  Result Run(Request request);
  // Returns only when every byte and every reservation of every tier is back.
  void AwaitBaseline();

  Engine& engine() { return *engine_; }
  Backend& backend() { return backend_; }
  WatchedModel& model() { return *watched_; }

 private:
  Backend backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<WatchedModel> watched_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace strata
