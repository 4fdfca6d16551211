#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer.h"
#include "model/tokenizer_vocab.h"

namespace strata {

// Byte-level byte pair encoding of one word: the adjacent pair of the lowest rank (the leftmost of
// equals) is merged until no pair of the merge list is left. O(n log n) in the word's bytes.
// Immutable; any thread, each with a Scratch of its own.
class BpeMerger {
 public:
  // A merge list entry is "left right". InvalidArgument for an entry that is malformed, occurs
  // twice, or names or makes a token that the vocabulary lacks.
  static absl::StatusOr<BpeMerger> Create(const Vocabulary& vocab,
                                          const std::vector<absl::string_view>& merges);

  struct Symbol {
    int32_t id = -1;    // -1: a byte without a token, which merges with nothing
    int32_t prev = -1;  // -1: none
    int32_t next = -1;
    uint32_t start = 0;
    uint32_t end = 0;  // start == end: merged into its left neighbour
  };
  struct Pair {
    uint32_t rank = 0;
    int32_t left = 0;
    int32_t left_id = 0;  // what the symbols were: a pair whose symbols changed is stale
    int32_t right_id = 0;
    int32_t merged_id = 0;
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<Pair> heap;
  };

  // Appends the word's tokens; `offset` is where the word stands in the input. A byte that the
  // vocabulary has no token for adds none.
  void Merge(absl::string_view word, uint32_t offset, Scratch* scratch,
             std::vector<TokenSpan>* out) const;

  // The token of one byte alone; nothing where there is none.
  void AppendByte(uint8_t byte, uint32_t offset, std::vector<TokenSpan>* out) const;

 private:
  struct Rule {
    uint32_t rank = 0;
    int32_t merged_id = 0;
  };
  BpeMerger() = default;
  void PushPair(int32_t left, Scratch* scratch) const;

  std::array<int32_t, 256> byte_ids_{};
  absl::flat_hash_map<uint64_t, Rule> rules_;  // left id << 32 | right id
};

}  // namespace strata
