#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

class GgufFile;

// tokenizer.ggml.token_type.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// What holds where the metadata says nothing.
struct VocabularyDefaults {
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  int32_t unknown_id = -1;
  bool adds_bos = false;
  bool adds_space_prefix = false;
};

// The tokenizer's metadata, checked. Immutable once read.
//   V1  every token has a kind, and a score when there are scores
//   V2  texts are distinct (empty ones apart, which nothing can find)
//   V3  every id in it is -1 or a token
class Vocabulary {
 public:
  // InvalidArgument naming the file, the key, the value and the limit.
  static absl::StatusOr<Vocabulary> Read(const GgufFile& file, const VocabularyDefaults& defaults);

  Vocabulary(Vocabulary&&) = default;  // a copy's texts would lie elsewhere than ids_ points
  Vocabulary& operator=(Vocabulary&&) = default;

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  bool Contains(int32_t id) const { return id >= 0 && id < size(); }
  const std::string& text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  TokenKind kind(int32_t id) const { return kinds_[static_cast<size_t>(id)]; }
  bool has_scores() const { return !scores_.empty(); }
  float score(int32_t id) const { return scores_[static_cast<size_t>(id)]; }
  int32_t Find(absl::string_view text) const;  // -1: none

  int32_t bos_id() const { return bos_id_; }
  int32_t eos_id() const { return eos_id_; }
  int32_t unknown_id() const { return unknown_id_; }
  bool adds_bos() const { return adds_bos_; }
  bool adds_eos() const { return adds_eos_; }
  bool adds_space_prefix() const { return adds_space_prefix_; }
  const std::vector<int32_t>& eog_ids() const { return eog_ids_; }  // ascending

  // Control and unknown tokens: matched in text only when asked for, shown only when asked for.
  bool IsSpecial(int32_t id) const {
    return kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown;
  }

 private:
  Vocabulary() = default;
  absl::Status ReadTokens(const GgufFile& file);
  absl::Status ReadKinds(const GgufFile& file);
  absl::Status ReadScores(const GgufFile& file);
  absl::Status ReadIds(const GgufFile& file, const VocabularyDefaults& defaults);
  absl::Status ReadEog(const GgufFile& file);

  std::vector<std::string> texts_;
  std::vector<TokenKind> kinds_;
  std::vector<float> scores_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // views of texts_
  std::vector<int32_t> eog_ids_;
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
  int32_t unknown_id_ = -1;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  bool adds_space_prefix_ = false;
};

}  // namespace strata
