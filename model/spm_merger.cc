#include "model/spm_merger.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/unicode.h"

namespace strata {
namespace {

std::string ByteTokenText(int byte) {
  constexpr absl::string_view kDigits = "0123456789ABCDEF";
  return {'<',
          '0',
          'x',
          kDigits[static_cast<size_t>(byte / 16)],
          kDigits[static_cast<size_t>(byte % 16)],
          '>'};
}

}  // namespace

struct SpmMerger::Symbol {
  absl::string_view text;  // as the pieces are written; empty: joined to its left neighbour
  int32_t prev = -1;       // -1: none
  int32_t next = -1;
  uint32_t start = 0;  // in the input
  uint32_t end = 0;
};

struct SpmMerger::Pair {
  float score = 0;
  int32_t left = 0;
  size_t bytes = 0;  // of both texts: a pair whose symbols have grown since is stale

  // For the standard heaps, which keep the greatest in front: the pair to join first.
  bool operator<(const Pair& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

struct SpmMerger::Work {
  std::string text;  // the symbols' texts are adjacent views of it
  std::vector<Symbol> symbols;
  std::vector<Pair> heap;
};

absl::StatusOr<SpmMerger> SpmMerger::Create(const Vocabulary* vocab) {
  if (!vocab->has_scores()) {
    return absl::InvalidArgumentError("tokenizer.ggml.scores: missing");
  }
  SpmMerger merger;
  merger.vocab_ = vocab;
  for (int32_t id = 0; id < vocab->size(); ++id) {
    merger.piece_bytes_max_ = std::max(merger.piece_bytes_max_, vocab->text(id).size());
  }
  int missing = -1;
  for (int byte = 0; byte < 256; ++byte) {
    int32_t id = vocab->Find(ByteTokenText(byte));
    if (id >= 0 && vocab->kind(id) != TokenKind::kByte) id = -1;
    merger.byte_ids_[static_cast<size_t>(byte)] = id;
    if (id < 0) missing = byte;
    if (id >= 0) merger.has_bytes_ = true;
  }
  if (merger.has_bytes_ && missing >= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer.ggml.tokens: there are byte tokens, but not ", ByteTokenText(missing)));
  }
  STRATA_CHECK(merger.has_bytes_ || vocab->unknown_id() >= 0);
  return merger;
}

int32_t SpmMerger::FindPiece(absl::string_view text) const {
  if (text.size() > piece_bytes_max_) return -1;
  const int32_t id = vocab_->Find(text);
  if (id < 0) return -1;
  // Text must never become a control token, nor "<0x41>" the token of a byte.
  const TokenKind kind = vocab_->kind(id);
  return kind == TokenKind::kNormal || kind == TokenKind::kUserDefined ? id : -1;
}

int SpmMerger::ByteOf(int32_t id) const {
  if (!has_bytes_ || vocab_->kind(id) != TokenKind::kByte) return -1;
  const auto found = std::find(byte_ids_.begin(), byte_ids_.end(), id);
  return found == byte_ids_.end() ? -1 : static_cast<int>(found - byte_ids_.begin());
}

void SpmMerger::PushPair(int32_t left, Work* work) const {
  const Symbol& l = work->symbols[static_cast<size_t>(left)];
  if (l.next < 0) return;
  const Symbol& r = work->symbols[static_cast<size_t>(l.next)];
  const size_t bytes = l.text.size() + r.text.size();
  const int32_t id = FindPiece(absl::string_view(l.text.data(), bytes));
  if (id < 0) return;
  work->heap.push_back({vocab_->score(id), left, bytes});
  std::push_heap(work->heap.begin(), work->heap.end());
}

void SpmMerger::Merge(absl::string_view text, uint32_t offset, bool space_prefix,
                      std::vector<TokenSpan>* out) const {
  Work work;
  // Reserved once: the symbols hold views of it.
  const size_t spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' ')) + 1;
  work.text.reserve(text.size() + spaces * kSpmSpace.size());
  const auto add_symbol = [&work](absl::string_view written, uint32_t start, uint32_t end) {
    const int32_t index = static_cast<int32_t>(work.symbols.size());
    const char* const at = work.text.data() + work.text.size();
    work.text.append(written.data(), written.size());
    work.symbols.push_back(
        {absl::string_view(at, written.size()), index - 1, index + 1, start, end});
  };
  if (space_prefix) add_symbol(kSpmSpace, offset, offset);
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = NextUtf8(text.substr(at));
    const size_t bytes = unit.kind == Utf8Kind::kValid ? unit.bytes : 1;
    const absl::string_view character = text.substr(at, bytes);
    const uint32_t start = offset + static_cast<uint32_t>(at);
    add_symbol(character == " " ? kSpmSpace : character, start,
               start + static_cast<uint32_t>(bytes));
    at += bytes;
  }
  if (work.symbols.empty()) return;
  work.symbols.back().next = -1;
  for (size_t i = 0; i < work.symbols.size(); ++i) PushPair(static_cast<int32_t>(i), &work);

  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end());
    const Pair pair = work.heap.back();
    work.heap.pop_back();
    Symbol& left = work.symbols[static_cast<size_t>(pair.left)];
    if (left.text.empty() || left.next < 0) continue;
    Symbol& right = work.symbols[static_cast<size_t>(left.next)];
    if (left.text.size() + right.text.size() != pair.bytes) continue;
    left.text = absl::string_view(left.text.data(), pair.bytes);
    left.end = right.end;
    left.next = right.next;
    right.text = {};
    if (left.next >= 0) work.symbols[static_cast<size_t>(left.next)].prev = pair.left;
    if (left.prev >= 0) PushPair(left.prev, &work);
    PushPair(pair.left, &work);
  }
  for (int32_t i = 0; i >= 0; i = work.symbols[static_cast<size_t>(i)].next) {
    AppendSymbol(work.symbols[static_cast<size_t>(i)], out);
  }
}

void SpmMerger::AppendSymbol(const Symbol& symbol, std::vector<TokenSpan>* out) const {
  const int32_t id = FindPiece(symbol.text);
  if (id >= 0 || !has_bytes_) {
    out->push_back({id >= 0 ? id : vocab_->unknown_id(), symbol.start, symbol.end});
    return;
  }
  // One token a byte. Only of a space, written as three bytes, are there more than in the input.
  for (size_t i = 0; i < symbol.text.size(); ++i) {
    const uint32_t start = std::min(symbol.start + static_cast<uint32_t>(i), symbol.end);
    out->push_back(
        {byte_ids_[static_cast<uint8_t>(symbol.text[i])], start, std::min(start + 1, symbol.end)});
  }
}

}  // namespace strata
