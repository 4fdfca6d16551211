#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "model/model.h"

namespace strata {

// One character a token: id 2 is '0', then letters; 0 is BOS, 1 ends generation.
class FakeTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kVocab = 64;
  static constexpr int32_t kEos = 1;

  absl::StatusOr<std::vector<TokenSpan>> Encode(absl::string_view text,
                                                const EncodeOptions& options) const override;
  std::string TokenBytes(int32_t id, bool show_special) const override;
  std::string Decode(const std::vector<int32_t>& ids, bool show_special) const override;
  int32_t vocab_size() const override { return kVocab; }
  bool IsSpecial(int32_t id) const override { return id == 0 || id == kEos; }
  bool IsEog(int32_t id) const override { return id == kEos; }
  const std::vector<int32_t>& eog_ids() const override { return eog_; }
  int32_t bos_id() const override { return 0; }
  bool adds_bos() const override { return false; }

 private:
  const std::vector<int32_t> eog_ = {kEos};
};

// A deterministic language: the next token is a hash of all tokens before it, as they are read back
// from the pages of every layer. A token that is missing, stale, or another sequence's changes the
// output; Continue() says what it should be without any cache.
class FakeModel : public Model {
 public:
  static constexpr int32_t kContext = 4096;

  FakeModel();
  const ModelConfig& config() const override { return config_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const KvBasis& basis() const override { return basis_; }
  uint64_t fingerprint() const override { return 1; }
  size_t weight_bytes() const override { return 0; }
  const std::string& weight_format() const override { return format_; }
  absl::Status Forward(const ForwardBatch& batch, KvStep* kv, float* logits) override;

  // The first `count` greedy tokens after the prompt, EOS included like any other.
  static std::vector<int32_t> Continue(std::vector<int32_t> prompt, int32_t count);

  // Called at the start of every Forward; an error is returned in its place.
  std::function<absl::Status(const ForwardBatch&)> before_forward;

 private:
  ModelConfig config_;
  FakeTokenizer tokenizer_;
  KvBasis basis_;
  const std::string format_ = "FAKE";
};

}  // namespace strata
