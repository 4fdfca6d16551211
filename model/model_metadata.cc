#include "model/model_metadata.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/status_macros.h"

namespace strata {

absl::StatusOr<int64_t> ModelMetadata::RawInt(const std::string& key) const {
  if (const auto single = file_.Uint(key); single.ok()) {
    return static_cast<int64_t>(std::min<uint64_t>(*single, std::numeric_limits<int64_t>::max()));
  } else if (const auto array = file_.Ints(key); !array.ok()) {
    return single.status();
  } else {
    const std::vector<int64_t>& values = *array;
    if (values.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": metadata '", key, "' is an empty array"));
    }
    for (const int64_t value : values) {
      if (value != values[0]) {
        return absl::UnimplementedError(absl::StrCat(file_.path(), ": metadata '", key,
                                                     "' varies by layer (", values[0], " and ",
                                                     value, "), which is not supported"));
      }
    }
    return values[0];
  }
}

absl::StatusOr<int32_t> ModelMetadata::Int(absl::string_view suffix, int64_t low, int64_t high,
                                           std::optional<int64_t> absent) const {
  const std::string key = Key(suffix);
  if (absent.has_value() && !file_.Has(key)) return static_cast<int32_t>(*absent);
  STRATA_ASSIGN_OR_RETURN(const int64_t value, RawInt(key));
  if (value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": metadata '", key, "' is ",
                                                   value, ", allowed are ", low, " to ", high));
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<float> ModelMetadata::Float(absl::string_view suffix, double low, double high,
                                           std::optional<double> absent) const {
  const std::string key = Key(suffix);
  if (absent.has_value() && !file_.Has(key)) return static_cast<float>(*absent);
  STRATA_ASSIGN_OR_RETURN(const double value, file_.Float(key));
  if (!(value >= low && value <= high)) {  // also true for NaN
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": metadata '", key, "' is ",
                                                   value, ", allowed are ", low, " to ", high));
  }
  return static_cast<float>(value);
}

}  // namespace strata
