#include "server/rpc/utf8.h"

#include <algorithm>
#include <cstdint>

namespace strata::rpc {
namespace {

// Length of the well-formed character at the start of `bytes`; 0 if there is none.
size_t CharacterLength(absl::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || bytes.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies above U+10FFFF.
  const uint8_t second = byte(1);
  if (lead == 0xE0 && second < 0xA0) return 0;
  if (lead == 0xED && second > 0x9F) return 0;
  if (lead == 0xF0 && second < 0x90) return 0;
  if (lead == 0xF4 && second > 0x8F) return 0;
  return length;
}

}  // namespace

std::string ToValidUtf8(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = CharacterLength(bytes);
    if (length == 0) {
      text += "\xEF\xBF\xBD";
    } else {
      text.append(bytes.data(), length);
    }
    bytes.remove_prefix(std::max<size_t>(length, 1));
  }
  return text;
}

}  // namespace strata::rpc
