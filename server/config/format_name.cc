#include "server/config/format_name.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

int Bits(KvKind kind) {
  switch (kind) {
    case KvKind::kF16:
      return 16;
    case KvKind::kI4:
      return 4;
    case KvKind::kI2:
      return 2;
  }
  return 0;
}

std::optional<KvKind> KindOfBits(absl::string_view bits) {
  if (bits == "16") return KvKind::kF16;
  if (bits == "4") return KvKind::kI4;
  if (bits == "2") return KvKind::kI2;
  return std::nullopt;
}

}  // namespace

std::string FormatName(const TensorKinds& kinds) {
  if (kinds.k != kinds.v) return absl::StrCat("k", Bits(kinds.k), "v", Bits(kinds.v));
  return kinds.k == KvKind::kF16 ? "f16" : absl::StrCat("i", Bits(kinds.k));
}

absl::StatusOr<TensorKinds> ParseFormatName(absl::string_view name) {
  if (name == "f16") return TensorKinds{KvKind::kF16, KvKind::kF16};
  if (name == "i4") return TensorKinds{KvKind::kI4, KvKind::kI4};
  if (name == "i2") return TensorKinds{KvKind::kI2, KvKind::kI2};
  const size_t v = name.find('v');
  if (!name.empty() && name[0] == 'k' && v != absl::string_view::npos) {
    const auto k_kind = KindOfBits(name.substr(1, v - 1));
    const auto v_kind = KindOfBits(name.substr(v + 1));
    if (k_kind.has_value() && v_kind.has_value()) return TensorKinds{*k_kind, *v_kind};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is not a page format: f16, i4, i2, or K and V apart as in k4v2"));
}

std::string TierFormatName(const TierOptions& options, Tier tier) {
  if (tier == Tier::kHot) return "f16";
  const auto& layers = tier == Tier::kWarm ? options.formats.warm : options.formats.cold;
  if (layers.empty()) return "none";
  const bool alike = std::all_of(layers.begin(), layers.end(),
                                 [&](const TensorKinds& kinds) { return kinds == layers[0]; });
  return alike ? FormatName(layers[0]) : "mixed";
}

}  // namespace strata
