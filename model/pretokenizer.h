#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// What tokenizer.ggml.pre names: how byte-level BPE cuts text into words before it merges, and the
// two defaults that come with the name.
struct PreTokenizerRule {
  absl::string_view name;
  absl::string_view pattern;
  bool ignore_merges = false;  // a word that is a token is taken whole, without merging
  bool adds_bos = false;       // unless the metadata says otherwise
};

// Unimplemented, listing what is known, for any other name.
absl::StatusOr<PreTokenizerRule> FindPreTokenizerRule(absl::string_view name);

// Cuts text into words with the rule's regular expression. Immutable; any thread.
class PreTokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(const PreTokenizerRule& rule);
  virtual ~PreTokenizer() = default;

  // Appends the end offset of each word. The words cover `text`, which must be well-formed UTF-8;
  // what the pattern leaves between two matches is a word too.
  virtual absl::Status Split(absl::string_view text, std::vector<size_t>* ends) const = 0;
};

}  // namespace strata
