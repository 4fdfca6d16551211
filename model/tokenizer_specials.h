#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer_vocab.h"

namespace strata {

// Finds tokens that stand in text as they are written: user-defined ones always, control and
// unknown ones on request. The leftmost match wins, of those the longest, as the models' own
// tokenizers do. Immutable; any thread.
class SpecialMatcher {
 public:
  explicit SpecialMatcher(const Vocabulary& vocab);

  struct Match {
    size_t start = 0;
    size_t end = 0;
    int32_t id = -1;  // -1: no match; start and end are then the text's end
  };
  // The first match at or after `from`. At most (bytes of the longest such token) steps a byte.
  Match Next(absl::string_view text, size_t from, bool parse_special) const;

 private:
  struct Node {
    int32_t user_defined = -1;  // token that ends here
    int32_t special = -1;
  };
  void Insert(absl::string_view text, int32_t id, bool special);
  Match LongestAt(absl::string_view text, size_t start, bool parse_special) const;

  std::vector<Node> nodes_;
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // node << 8 | byte
  bool begins_[256] = {};
};

}  // namespace strata
