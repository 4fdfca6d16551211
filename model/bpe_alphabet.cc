#include "model/bpe_alphabet.h"

#include <array>

#include "model/unicode.h"

namespace strata {
namespace {

constexpr uint32_t kShiftedBase = 0x100;
constexpr int kShiftedCount = 68;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<uint8_t, kShiftedCount> shifted;  // byte of kShiftedBase + i
};

const Alphabet& GetAlphabet() {
  static const Alphabet* const alphabet = [] {
    auto* made = new Alphabet;
    uint32_t next = 0;
    for (int byte = 0; byte < 256; ++byte) {
      uint32_t code_point = static_cast<uint32_t>(byte);
      if (!StandsForItself(byte)) {
        made->shifted[next] = static_cast<uint8_t>(byte);
        code_point = kShiftedBase + next++;
      }
      AppendUtf8(code_point, &made->characters[static_cast<size_t>(byte)]);
    }
    return made;
  }();
  return *alphabet;
}

}  // namespace

absl::string_view BpeByteCharacter(uint8_t byte) { return GetAlphabet().characters[byte]; }

std::string BpeTextToBytes(absl::string_view text) {
  const Alphabet& alphabet = GetAlphabet();
  std::string bytes;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8(text);
    const absl::string_view sequence = text.substr(0, unit.bytes);
    text.remove_prefix(unit.bytes);
    const uint32_t code_point = unit.kind == Utf8Kind::kValid ? DecodeUtf8(sequence) : 0;
    if (code_point >= kShiftedBase && code_point < kShiftedBase + kShiftedCount) {
      bytes.push_back(static_cast<char>(alphabet.shifted[code_point - kShiftedBase]));
    } else if (code_point < kShiftedBase && StandsForItself(static_cast<int>(code_point))) {
      bytes.push_back(static_cast<char>(code_point));
    } else {
      bytes.append(sequence.data(), sequence.size());
    }
  }
  return bytes;
}

}  // namespace strata
