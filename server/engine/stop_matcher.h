#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Stop strings, compiled (Aho and Corasick 1975): each byte of text costs amortised constant time,
// however many strings there are. Immutable; any thread.
class StopSet {
 public:
  static constexpr size_t kStopsMax = 16;
  static constexpr size_t kStopBytesMax = 512;

  // For the edge that takes the strings in: InvalidArgument for too many, or one that is empty, too
  // long or not UTF-8.
  static absl::Status Check(const std::vector<std::string>& stops);

  // Strings that are empty or not UTF-8 stand in no text, and are left out.
  explicit StopSet(std::vector<std::string> stops);

  // A state is the longest suffix of the text that is a prefix of a stop string.
  uint32_t Step(uint32_t state, char byte) const;
  size_t SuffixBytes(uint32_t state) const { return nodes_[state].depth; }
  // The state once a stop string that ends here was let pass: only what may yet grow into one.
  uint32_t PassBy(uint32_t state) const;
  // The longest stop string that ends here; null: none.
  const std::string* Matched(uint32_t state) const;

 private:
  struct Node {
    size_t depth = 0;
    uint32_t fallback = 0;  // the state of the longest proper suffix
    int32_t stop = -1;      // index of the longest stop string that is a suffix
    bool grows = false;     // a proper prefix of a stop string
  };
  void Insert(int32_t index);
  void LinkFallbacks();

  std::vector<std::string> stops_;
  std::vector<Node> nodes_ = std::vector<Node>(1);  // the root
  absl::flat_hash_map<uint64_t, uint32_t> edges_;   // node << 8 | byte
};

// Looks for stop strings in text that comes in pieces of any size. The one that ends first counts,
// of those the longest: so where the text is cut does not depend on the pieces. One stream, one
// thread.
class StopMatcher {
 public:
  explicit StopMatcher(StopSet stops) : stops_(std::move(stops)) {}

  struct Result {
    std::string text;                      // what can be part of no stop string any more
    const std::string* matched = nullptr;  // the text ends before it
  };
  // With `may_stop` false a stop string that ends in this piece is text like any other.
  Result Push(absl::string_view piece, bool may_stop);
  // No text follows: what was held back.
  std::string Finish();

 private:
  StopSet stops_;
  std::string held_;
  uint32_t state_ = 0;
};

}  // namespace strata
