#include "model/tokenizer_base.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/gguf_file.h"

namespace strata {
namespace {

// Offsets are 32 bits, and a symbol's index is a positive int32_t.
constexpr size_t kTextBytesMax = std::numeric_limits<int32_t>::max() / 2;

}  // namespace

TokenizerBase::TokenizerBase(std::unique_ptr<const Vocabulary> vocab)
    : vocab_(std::move(vocab)), specials_(*vocab_) {}

absl::StatusOr<std::vector<TokenSpan>> TokenizerBase::Encode(absl::string_view text,
                                                             const EncodeOptions& options) const {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("text of ", text.size(), " bytes; at most ", kTextBytesMax, " are allowed"));
  }
  std::vector<TokenSpan> out;
  if (options.add_special && vocab_->adds_bos()) out.push_back({vocab_->bos_id(), 0, 0});
  for (size_t at = 0; at < text.size();) {
    const SpecialMatcher::Match match = specials_.Next(text, at, options.parse_special);
    if (match.start > at) {
      STRATA_RETURN_IF_ERROR(
          EncodeText(text.substr(at, match.start - at), static_cast<uint32_t>(at), &out));
    }
    if (match.id >= 0) {
      out.push_back(
          {match.id, static_cast<uint32_t>(match.start), static_cast<uint32_t>(match.end)});
    }
    at = match.end;
  }
  if (options.add_special && vocab_->adds_eos()) {
    const uint32_t end = static_cast<uint32_t>(text.size());
    out.push_back({vocab_->eos_id(), end, end});
  }
  return out;
}

std::string TokenizerBase::TokenBytes(int32_t id, bool show_special) const {
  if (!vocab_->Contains(id)) return "";
  if (vocab_->IsSpecial(id)) return show_special ? vocab_->text(id) : "";
  if (vocab_->kind(id) == TokenKind::kUserDefined) return vocab_->text(id);
  return TextTokenBytes(id);
}

std::string TokenizerBase::Decode(const std::vector<int32_t>& ids, bool show_special) const {
  std::string text;
  bool at_front = true;
  for (const int32_t id : ids) {
    const std::string bytes = TokenBytes(id, show_special);
    if (bytes.empty()) continue;
    // The space that Encode put before the text.
    const bool prefixed = at_front && vocab_->adds_space_prefix() && bytes[0] == ' ' &&
                          vocab_->kind(id) == TokenKind::kNormal;
    text.append(bytes, prefixed ? 1 : 0);
    at_front = false;
  }
  return text;
}

bool TokenizerBase::IsEog(int32_t id) const {
  const std::vector<int32_t>& ids = vocab_->eog_ids();
  return std::binary_search(ids.begin(), ids.end(), id);
}

}  // namespace strata
