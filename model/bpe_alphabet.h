#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

// The alphabet in which byte-level BPE vocabularies are written (GPT-2): every byte is one
// printable character. Printable ASCII and Latin-1 bytes are themselves; the other 68 are U+0100,
// U+0101, ... in the order of their values.

// The character of a byte, as UTF-8.
absl::string_view BpeByteCharacter(uint8_t byte);

// The bytes that a token's text stands for. A character outside the alphabet stands for itself.
std::string BpeTextToBytes(absl::string_view text);

}  // namespace strata
