#pragma once

#include "absl/status/status.h"
#include "tiering/tiered_cache.h"

namespace strata {

// Attaches the sequence that TieredCache::SequenceOf finds again.
absl::Status WithSequence(absl::Status status, SequenceHandle sequence);

}  // namespace strata
