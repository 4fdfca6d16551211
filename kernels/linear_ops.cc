#include "kernels/linear_ops.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace strata {
namespace {

absl::Status ValidateSource(const WeightSource& source) {
  if (static_cast<int>(source.type) >= kWeightTypes) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight type ", static_cast<int>(source.type), " is not known"));
  }
  const WeightTypeInfo& info = InfoOf(source.type);
  if (source.in_features <= 0 || source.in_features > kMaxFeatures) {
    return absl::InvalidArgumentError(absl::StrCat(info.name, " matrix of ", source.in_features,
                                                   " columns; 1 to ", kMaxFeatures, " allowed"));
  }
  if (source.in_features % info.block_values != 0) {
    return absl::InvalidArgumentError(absl::StrCat(info.name, " matrix of ", source.in_features,
                                                   " columns; a multiple of its block of ",
                                                   info.block_values, " needed"));
  }
  if (source.out_features <= 0 || source.out_features > kMaxFeatures) {
    return absl::InvalidArgumentError(absl::StrCat(info.name, " matrix of ", source.out_features,
                                                   " rows; 1 to ", kMaxFeatures, " allowed"));
  }
  if (source.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(info.name, " matrix without data"));
  }
  return absl::OkStatus();
}

}  // namespace

const WeightTypeInfo& InfoOf(WeightType type) {
  const int index = static_cast<int>(type);
  STRATA_CHECK(index >= 0 && index < kWeightTypes);
  return kWeightTypeInfo[index];
}

size_t RowBytes(WeightType type, int32_t in_features) {
  const WeightTypeInfo& info = InfoOf(type);
  return size_t{1} * (in_features / info.block_values) * info.block_bytes;
}

absl::Status ValidateSources(absl::Span<const WeightSource> sources) {
  if (sources.empty()) return absl::InvalidArgumentError("no matrix to prepare");
  int64_t out_features = 0;
  for (const WeightSource& source : sources) {
    if (absl::Status status = ValidateSource(source); !status.ok()) return status;
    if (source.in_features != sources[0].in_features) {
      return absl::InvalidArgumentError(absl::StrCat("stacked matrices of ", sources[0].in_features,
                                                     " and ", source.in_features,
                                                     " columns; one number needed"));
    }
    out_features += source.out_features;
  }
  if (out_features > kMaxFeatures) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stacked matrices of ", out_features, " rows in all; at most ", kMaxFeatures, " allowed"));
  }
  return absl::OkStatus();
}

}  // namespace strata
