#include "server/engine/detokenizer.h"

#include "model/unicode.h"

namespace strata {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string Utf8Assembler::Push(absl::string_view bytes) {
  pending_.append(bytes.data(), bytes.size());
  absl::string_view left = pending_;
  std::string text;
  while (!left.empty()) {
    const Utf8Unit unit = NextUtf8(left);
    if (unit.kind == Utf8Kind::kTruncated) break;
    const absl::string_view whole =
        unit.kind == Utf8Kind::kValid ? left.substr(0, unit.bytes) : kReplacement;
    text.append(whole.data(), whole.size());
    left.remove_prefix(unit.bytes);
  }
  pending_.erase(0, pending_.size() - left.size());
  return text;
}

std::string Utf8Assembler::Finish() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return incomplete ? std::string(kReplacement) : "";
}

}  // namespace strata
