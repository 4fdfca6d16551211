#include "model/bpe_merger.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/bpe_alphabet.h"

namespace strata {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// For the standard heaps, which keep the greatest in front: the pair to merge first.
bool MergesLater(const BpeMerger::Pair& a, const BpeMerger::Pair& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

absl::Status BadMerge(size_t rank, absl::string_view merge, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer.ggml.merges: entry ", rank, ", \"", merge, "\": ", what));
}

}  // namespace

absl::StatusOr<BpeMerger> BpeMerger::Create(const Vocabulary& vocab,
                                            const std::vector<absl::string_view>& merges) {
  BpeMerger merger;
  for (int byte = 0; byte < 256; ++byte) {
    merger.byte_ids_[static_cast<size_t>(byte)] =
        vocab.Find(BpeByteCharacter(static_cast<uint8_t>(byte)));
  }
  merger.rules_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const absl::string_view merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == absl::string_view::npos) {
      return BadMerge(rank, merge, "not two tokens with a space between");
    }
    const absl::string_view left = merge.substr(0, space);
    const absl::string_view right = merge.substr(space + 1);
    const int32_t left_id = vocab.Find(left);
    const int32_t right_id = vocab.Find(right);
    const int32_t merged_id = vocab.Find(absl::StrCat(left, right));
    if (left_id < 0 || right_id < 0 || merged_id < 0) {
      const std::string unknown =
          left_id < 0 ? std::string(left)
                      : (right_id < 0 ? std::string(right) : absl::StrCat(left, right));
      return BadMerge(rank, merge, absl::StrCat("\"", unknown, "\" is not in the vocabulary"));
    }
    const Rule rule = {static_cast<uint32_t>(rank), merged_id};
    if (!merger.rules_.try_emplace(PairKey(left_id, right_id), rule).second) {
      return BadMerge(rank, merge, "occurs twice");
    }
  }
  return merger;
}

void BpeMerger::PushPair(int32_t left, Scratch* scratch) const {
  const Symbol& l = scratch->symbols[static_cast<size_t>(left)];
  if (l.next < 0) return;
  const Symbol& r = scratch->symbols[static_cast<size_t>(l.next)];
  if (l.id < 0 || r.id < 0) return;
  const auto rule = rules_.find(PairKey(l.id, r.id));
  if (rule == rules_.end()) return;
  scratch->heap.push_back({rule->second.rank, left, l.id, r.id, rule->second.merged_id});
  std::push_heap(scratch->heap.begin(), scratch->heap.end(), MergesLater);
}

void BpeMerger::Merge(absl::string_view word, uint32_t offset, Scratch* scratch,
                      std::vector<TokenSpan>* out) const {
  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<Pair>& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  const int32_t count = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t start = offset + static_cast<uint32_t>(i);
    symbols.push_back({byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i - 1,
                       i + 1 < count ? i + 1 : -1, start, start + 1});
  }
  for (int32_t i = 0; i + 1 < count; ++i) PushPair(i, scratch);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), MergesLater);
    const Pair pair = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(pair.left)];
    if (left.start == left.end || left.id != pair.left_id || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != pair.right_id) continue;
    left.id = pair.merged_id;
    left.end = right.end;
    left.next = right.next;
    right.end = right.start;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = pair.left;
    if (left.prev >= 0) PushPair(left.prev, scratch);
    PushPair(pair.left, scratch);
  }

  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<size_t>(i)];
    if (symbol.id >= 0) out->push_back({symbol.id, symbol.start, symbol.end});
  }
}

void BpeMerger::AppendByte(uint8_t byte, uint32_t offset, std::vector<TokenSpan>* out) const {
  if (byte_ids_[byte] >= 0) out->push_back({byte_ids_[byte], offset, offset + 1});
}

}  // namespace strata
