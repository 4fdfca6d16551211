#include "model/tokenizer_specials.h"

namespace strata {
namespace {

uint64_t EdgeKey(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

SpecialMatcher::SpecialMatcher(const Vocabulary& vocab) : nodes_(1) {
  for (int32_t id = 0; id < vocab.size(); ++id) {
    if (vocab.text(id).empty()) continue;
    if (vocab.kind(id) == TokenKind::kUserDefined) Insert(vocab.text(id), id, /*special=*/false);
    if (vocab.IsSpecial(id)) Insert(vocab.text(id), id, /*special=*/true);
  }
}

void SpecialMatcher::Insert(absl::string_view text, int32_t id, bool special) {
  begins_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [edge, added] =
        edges_.try_emplace(EdgeKey(node, byte), static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.emplace_back();
    node = edge->second;
  }
  (special ? nodes_[node].special : nodes_[node].user_defined) = id;
}

SpecialMatcher::Match SpecialMatcher::LongestAt(absl::string_view text, size_t start,
                                                bool parse_special) const {
  Match longest;
  uint32_t node = 0;
  for (size_t at = start; at < text.size(); ++at) {
    const auto edge = edges_.find(EdgeKey(node, text[at]));
    if (edge == edges_.end()) break;
    node = edge->second;
    // Texts are distinct (V2), so at most one of the two is set.
    const int32_t special = parse_special ? nodes_[node].special : -1;
    const int32_t id = special >= 0 ? special : nodes_[node].user_defined;
    if (id >= 0) longest = {start, at + 1, id};
  }
  return longest;
}

SpecialMatcher::Match SpecialMatcher::Next(absl::string_view text, size_t from,
                                           bool parse_special) const {
  for (size_t start = from; start < text.size(); ++start) {
    if (!begins_[static_cast<uint8_t>(text[start])]) continue;
    const Match match = LongestAt(text, start, parse_special);
    if (match.id >= 0) return match;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace strata
