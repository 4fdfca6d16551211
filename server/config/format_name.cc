#include "server/config/format_name.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace strata {
namespace {

std::optional<KvKind> KindOfBits(absl::string_view bits) {
  if (bits == "16") return KvKind::kF16;
  if (bits == "4") return KvKind::kI4;
  if (bits == "2") return KvKind::kI2;
  return std::nullopt;
}

}  // namespace

std::string FormatName(const TensorKinds& kinds) {
  if (kinds.k != kinds.v) return absl::StrCat("k", BitsOf(kinds.k), "v", BitsOf(kinds.v));
  return kinds.k == KvKind::kF16 ? "f16" : absl::StrCat("i", BitsOf(kinds.k));
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
  const bool warm = tier == Tier::kWarm;
  if ((warm ? options.warm_bytes : options.cold_bytes) == 0) return "none";
  std::vector<std::pair<std::string, int>> counts;
  for (const TensorKinds& kinds : warm ? options.formats.warm : options.formats.cold) {
    const std::string name = FormatName(kinds);
    const auto same = [&](const auto& entry) { return entry.first == name; };
    const auto found = std::find_if(counts.begin(), counts.end(), same);
    if (found != counts.end()) {
      ++found->second;
    } else {
      counts.emplace_back(name, 1);
    }
  }
  std::stable_sort(counts.begin(), counts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return absl::StrJoin(
      counts, "+", [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first); });
}

}  // namespace strata
