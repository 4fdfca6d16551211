#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

class GgufFile;

struct EncodeOptions {
  bool add_special = true;     // add BOS (EOS) where the tokenizer's metadata says so
  bool parse_special = false;  // text such as "<|im_end|>" becomes that token
};

// A token and the bytes of the input it stands for.
struct TokenSpan {
  int32_t id = 0;
  uint32_t start = 0;  // byte offsets in the input; start == end for added tokens
  uint32_t end = 0;
};

// Text to token ids and back, as the model's own tokenizer does it. Immutable; any thread.
class Tokenizer {
 public:
  // Unimplemented, by name, for a tokenizer model or pre-tokenizer that is not known.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const GgufFile& file);
  virtual ~Tokenizer() = default;

  // Any bytes are accepted; invalid UTF-8 is encoded byte by byte.
  virtual absl::StatusOr<std::vector<TokenSpan>> Encode(absl::string_view text,
                                                        const EncodeOptions& options) const = 0;

  // The bytes a token adds to the output; may be part of a UTF-8 character. Special (control)
  // tokens give their text with `show_special`, else nothing. An id out of range gives nothing.
  virtual std::string TokenBytes(int32_t id, bool show_special) const = 0;
  // TokenBytes of all, with SentencePiece's leading-space rule applied to the first.
  virtual std::string Decode(const std::vector<int32_t>& ids, bool show_special) const = 0;

  virtual int32_t vocab_size() const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;  // control tokens
  virtual bool IsEog(int32_t id) const = 0;      // EOS, EOT and the like: generation ends here
  virtual const std::vector<int32_t>& eog_ids() const = 0;
  virtual int32_t bos_id() const = 0;  // -1: none
  virtual bool adds_bos() const = 0;
};

}  // namespace strata
