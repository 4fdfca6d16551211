#include "model/unicode.h"

#include <algorithm>

#include "base/check.h"

namespace strata {
namespace {

struct LeadByte {
  uint8_t bytes = 0;  // 0: cannot begin a sequence
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

// Table 3-7: the second byte's range excludes overlong forms, surrogates and values too large.
LeadByte Classify(uint8_t lead) {
  if (lead < 0x80) return {.bytes = 1};
  if (lead < 0xC2) return {};
  if (lead < 0xE0) return {.bytes = 2};
  if (lead == 0xE0) return {.bytes = 3, .second_min = 0xA0};
  if (lead == 0xED) return {.bytes = 3, .second_max = 0x9F};
  if (lead < 0xF0) return {.bytes = 3};
  if (lead == 0xF0) return {.bytes = 4, .second_min = 0x90};
  if (lead < 0xF4) return {.bytes = 4};
  if (lead == 0xF4) return {.bytes = 4, .second_max = 0x8F};
  return {};
}

}  // namespace

Utf8Unit NextUtf8(absl::string_view text) {
  STRATA_CHECK(!text.empty());
  const LeadByte lead = Classify(static_cast<uint8_t>(text[0]));
  if (lead.bytes == 0) return {Utf8Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {Utf8Kind::kTruncated, i};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kValid, lead.bytes};
}

size_t ValidUtf8Prefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = NextUtf8(text.substr(at));
    if (unit.kind != Utf8Kind::kValid) break;
    at += unit.bytes;
  }
  return at;
}

uint32_t DecodeUtf8(absl::string_view sequence) {
  static constexpr uint8_t kLeadMask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  STRATA_CHECK(!sequence.empty() && sequence.size() <= 4);
  uint32_t code_point = static_cast<uint8_t>(sequence[0]) & kLeadMask[sequence.size()];
  for (size_t i = 1; i < sequence.size(); ++i) {
    code_point = code_point << 6 | (static_cast<uint8_t>(sequence[i]) & 0x3F);
  }
  return code_point;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  STRATA_CHECK(code_point <= 0x10FFFF);
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
    return;
  }
  const int tail = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  static constexpr uint8_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(kLead[tail] | code_point >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) {
    out->push_back(static_cast<char>(0x80 | (code_point >> (6 * i) & 0x3F)));
  }
}

}  // namespace strata
