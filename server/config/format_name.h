#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tiering/tier_options.h"

namespace strata {

// Names of page formats as options, metrics and reports spell them: "f16", "i4", "i2" where K and V
// are alike, else "k4v2" (16, 4 or 2 bits each).
std::string FormatName(const TensorKinds& kinds);
absl::StatusOr<TensorKinds> ParseFormatName(absl::string_view name);

// Of a whole tier: "i2+i4" where layers differ, the commonest first; "none" without the tier.
std::string TierFormatName(const TierOptions& options, Tier tier);

}  // namespace strata
