#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "cache/block_directory.h"
#include "cache/ids.h"

namespace strata {

// One sequence's ordered blocks. One thread.
//   T1: entry i holds tokens [64 i, 64 i + 64); only the last ones, those a step has prepared but
//       not finished, are not sealed. T2: an entry is in one table, once.
class BlockTable {
 public:
  void Reserve(int32_t blocks) { blocks_.reserve(blocks); }
  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }
  BlockId operator[](int32_t index) const {
    STRATA_CHECK(index >= 0 && index < size());
    return blocks_[index];
  }
  void Push(BlockId id) { blocks_.push_back(id); }
  void Clear() { blocks_.clear(); }
  const std::vector<BlockId>& blocks() const { return blocks_; }

  void CheckInvariants(const BlockDirectory& directory, uint32_t owner, int32_t tokens) const {
    STRATA_CHECK(BlocksForTokens(tokens) <= size());
    for (int32_t i = 0; i < size(); ++i) {
      const BlockInfo& block = directory.Get(blocks_[i]);
      STRATA_CHECK(block.state != BlockInfo::State::kDropped);
      STRATA_CHECK(block.owner == owner && block.index == i);
      const int32_t held = tokens - i * kBlockTokens;
      STRATA_CHECK(block.tokens == (held < 0 ? 0 : held > kBlockTokens ? kBlockTokens : held));
    }
  }

 private:
  std::vector<BlockId> blocks_;
};

}  // namespace strata
