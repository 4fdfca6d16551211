#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/tokenizer.h"
#include "model/tokenizer_specials.h"
#include "model/tokenizer_vocab.h"

namespace strata {

// What all tokenizers share: tokens that stand in the text as such are cut out, the text between
// goes to the algorithm, and BOS and EOS are added. Immutable; any thread.
class TokenizerBase : public Tokenizer {
 public:
  absl::StatusOr<std::vector<TokenSpan>> Encode(absl::string_view text,
                                                const EncodeOptions& options) const final;
  std::string TokenBytes(int32_t id, bool show_special) const final;
  std::string Decode(const std::vector<int32_t>& ids, bool show_special) const final;

  int32_t vocab_size() const final { return vocab_->size(); }
  bool IsSpecial(int32_t id) const final { return vocab_->Contains(id) && vocab_->IsSpecial(id); }
  bool IsEog(int32_t id) const final;
  const std::vector<int32_t>& eog_ids() const final { return vocab_->eog_ids(); }
  int32_t bos_id() const final { return vocab_->bos_id(); }
  bool adds_bos() const final { return vocab_->adds_bos(); }

 protected:
  explicit TokenizerBase(std::unique_ptr<const Vocabulary> vocab);
  const Vocabulary& vocab() const { return *vocab_; }

  // Appends the tokens of the text between two tokens (or the ends of the input).
  virtual absl::Status EncodeText(absl::string_view text, uint32_t offset,
                                  std::vector<TokenSpan>* out) const = 0;
  // The bytes of a token that stands in text only as the algorithm's work: kinds kNormal, kUnused
  // and kByte.
  virtual std::string TextTokenBytes(int32_t id) const = 0;

 private:
  std::unique_ptr<const Vocabulary> vocab_;
  SpecialMatcher specials_;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> CreateBpeTokenizer(const GgufFile& file);
absl::StatusOr<std::unique_ptr<Tokenizer>> CreateSpmTokenizer(const GgufFile& file);

}  // namespace strata
