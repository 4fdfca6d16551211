#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

enum class Utf8Kind : uint8_t {
  kValid,      // one well-formed sequence
  kTruncated,  // well-formed so far, but the text ends inside it
  kInvalid,    // never part of well-formed text
};

// What stands at the front of a text.
struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kInvalid;
  size_t bytes = 0;  // kInvalid: the maximal subpart (Unicode 15, section 3.9, U+FFFD substitution)
};

// Strict UTF-8 (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
// `text` must not be empty.
Utf8Unit NextUtf8(absl::string_view text);

// Bytes of the longest prefix that is whole, well-formed UTF-8.
size_t ValidUtf8Prefix(absl::string_view text);

// The code point of a sequence that NextUtf8 called valid.
uint32_t DecodeUtf8(absl::string_view sequence);

// Appends a code point up to U+10FFFF.
void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace strata
