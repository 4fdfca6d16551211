#pragma once

#include <cstddef>

#include "cache/layout/block_layout.h"
#include "cache/layout/record_layout.h"

namespace strata {

// Writes the record of the block in the warm slot `slot` to `record` (layout.bytes() bytes): the
// planes of the record's formats, layer by layer, and the kept REFINE regions. Padding is left as
// it is: it must be zero already.
void GatherRecord(const BlockLayout& warm, const RecordLayout& layout, const std::byte* slot,
                  std::byte* record);

}  // namespace strata
