#pragma once

#include <cstdint>

#include "base/strong_id.h"

namespace strata {

using BlockId = StrongId<struct BlockIdTag>;
// Room for one block in one tier. Slots of the cold tier are records of the cold store.
using SlotId = StrongId<struct SlotIdTag>;
// Room for one group of layers of one cold block in DRAM.
using UnitId = StrongId<struct UnitIdTag>;

}  // namespace strata
