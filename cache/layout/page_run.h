#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/layout/page_format.h"

namespace strata {

// Where one page lies, borrowed. `refine` may be null when the run reads neither tensor as I4.
struct KvPageView {
  const std::byte* base = nullptr;
  const std::byte* refine = nullptr;
  // Bit t set: token t of this page must be ignored (its exact copy is in another run).
  uint64_t skip = 0;
};

// Consecutive blocks of one sequence and one layer, all read in one format. `stored` locates
// regions (an I4 K keeps its lo planes ahead of V's in REFINE even when K is read as I2); `read_k`
// and `read_v` say how many bits to use.
struct PageRun {
  PageFormat stored;
  KvKind read_k = KvKind::kF16;
  KvKind read_v = KvKind::kF16;
  int32_t first_block = 0;  // position of the first token is 64 * first_block
  int32_t page_count = 0;
  int32_t tokens = 0;  // valid tokens: 64 * page_count but for a partial last page
  const KvPageView* pages = nullptr;
  // The pages lie in host memory (pinned, where a device attends to them), not in the device's own.
  bool on_host = false;
};

}  // namespace strata
