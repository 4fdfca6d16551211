#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer.h"
#include "model/tokenizer_vocab.h"

namespace strata {

// SentencePiece's BPE: characters are symbols; of all adjacent pairs whose joined text is a piece,
// the one of the highest score (the leftmost of equals) is joined, until there is none. A character
// that is no piece becomes its bytes' tokens, or the unknown token where the vocabulary has no byte
// tokens. O(n log n). Immutable, borrows the vocabulary; any thread.
class SpmMerger {
 public:
  // InvalidArgument when the scores are missing, or some of the byte tokens. A vocabulary without
  // byte tokens must have an unknown token.
  static absl::StatusOr<SpmMerger> Create(const Vocabulary* vocab);

  // Appends the tokens of `text`, which stands at `offset` in the input. With `space_prefix` a
  // space that the input does not have goes before it.
  void Merge(absl::string_view text, uint32_t offset, bool space_prefix,
             std::vector<TokenSpan>* out) const;

  // The byte that a token of kind kByte stands for; -1 for other tokens.
  int ByteOf(int32_t id) const;

 private:
  struct Symbol;
  struct Pair;
  struct Work;
  SpmMerger() = default;
  int32_t FindPiece(absl::string_view text) const;
  void PushPair(int32_t left, Work* work) const;
  void AppendSymbol(const Symbol& symbol, std::vector<TokenSpan>* out) const;

  const Vocabulary* vocab_ = nullptr;
  size_t piece_bytes_max_ = 0;
  bool has_bytes_ = false;
  std::array<int32_t, 256> byte_ids_{};
};

// SentencePiece writes a space as this character, U+2581.
inline constexpr absl::string_view kSpmSpace = "\xE2\x96\x81";

}  // namespace strata
