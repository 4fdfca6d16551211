#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "server/engine/detokenizer.h"
#include "server/engine/stop_matcher.h"

namespace strata {

struct TextStreamOptions {
  std::vector<std::string> stop;  // StopSet::Check is for whoever takes them in
  bool include_stop = false;      // the text ends with the stop string, not before it
  bool show_special = false;      // control tokens add their text, else nothing
  // The tokens are a text of their own: a SentencePiece tokenizer's first space is not part of it.
  // False where they go on with a prompt, in which that space is real.
  bool starts_text = false;
};

// The text of one sequence's tokens, given out as early as is safe: nothing in it changes or is
// taken back later.
//   S1  the pieces and the tail together are the tokens' bytes as UTF-8 (Utf8Assembler), up to the
//       first stop string (StopMatcher), whatever tokens the text came in
//   S2  a byte is held back only while it may yet be part of a stop string or of a character
// Linear in the text. Borrows the tokenizer; one thread.
class TextStream {
 public:
  struct Piece {
    std::string text;                         // whole UTF-8
    std::optional<std::string> stop_matched;  // generation ends here; nothing comes after
  };

  TextStream(const Tokenizer* tokenizer, TextStreamOptions options);

  // With `may_stop` false (before min_tokens) a stop string that ends in this token is text.
  Piece Push(int32_t token, bool may_stop = true);
  // The tail, when generation ends for another reason; empty after a stop string. A stop string
  // that only the end completes (by U+FFFD for a broken character) does not count.
  std::string Finish();

 private:
  std::string TokenBytes(int32_t token);

  const Tokenizer* tokenizer_;
  bool include_stop_;
  bool show_special_;
  Utf8Assembler assembler_;
  StopMatcher matcher_;
  bool at_start_;
  bool stopped_ = false;
};

}  // namespace strata
