#include "server/config/option_values.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/config/format_name.h"

namespace strata {
namespace {

constexpr int32_t kLayersMax = 4096;
// Sizes are multiplied by small numbers and added up: 1 EiB leaves room for that in 64 bits.
constexpr uint64_t kSizeEnd = uint64_t{1} << 60;
constexpr int32_t kCudaIndexMax = 63;

struct Unit {
  absl::string_view name;
  double factor;
};

constexpr Unit kSizeUnits[] = {
    {"TiB", 1099511627776.0},
    {"GiB", 1073741824.0},
    {"MiB", 1048576.0},
    {"KiB", 1024.0},
    {"TB", 1e12},
    {"GB", 1e9},
    {"MB", 1e6},
    {"KB", 1e3},
    {"B", 1.0},
};
// "ms" before "s" and "m".
constexpr Unit kTimeUnits[] = {{"ms", 1e6}, {"us", 1e3}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};

absl::Status Bad(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ", expected));
}

// A number without sign or exponent.
bool ParseNumber(absl::string_view text, double* value) {
  const bool plain = !text.empty() && text.find_first_not_of("0123456789.") == text.npos;
  return plain && absl::SimpleAtod(text, value);
}

// The number times its unit's factor; false if either is wrong, or if no unit is given.
template <size_t N>
bool ParseWithUnit(absl::string_view text, const Unit (&units)[N], double* value) {
  for (const Unit& unit : units) {
    if (!absl::EndsWithIgnoreCase(text, unit.name)) continue;
    if (!ParseNumber(text.substr(0, text.size() - unit.name.size()), value)) return false;
    *value *= unit.factor;
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  constexpr absl::string_view kExpected = "a size such as 1048576, 64MiB or 1.5GiB";
  constexpr absl::string_view kBelowEnd = "a size below 1 EiB";
  // Without a unit, every byte counts; a double has 53 bits.
  if (!text.empty() && text.find_first_not_of("0123456789") == text.npos) {
    uint64_t whole = 0;
    if (absl::SimpleAtoi(text, &whole) && whole < kSizeEnd) return whole;
    return Bad(text, kBelowEnd);
  }
  double bytes = 0;
  if (!ParseWithUnit(text, kSizeUnits, &bytes)) return Bad(text, kExpected);
  if (bytes >= static_cast<double>(kSizeEnd)) return Bad(text, kBelowEnd);
  return static_cast<uint64_t>(std::llround(bytes));
}

std::string FormatSize(uint64_t bytes) {
  if (bytes == 0) return "0";
  for (const Unit& unit : kSizeUnits) {
    const auto factor = static_cast<uint64_t>(unit.factor);
    if (absl::EndsWith(unit.name, "iB") && bytes % factor == 0) {
      return absl::StrCat(bytes / factor, unit.name);
    }
  }
  return absl::StrCat(bytes);
}

absl::StatusOr<std::chrono::nanoseconds> ParseDuration(absl::string_view text) {
  double nanoseconds = 0;
  const bool zero = ParseNumber(text, &nanoseconds) && nanoseconds == 0;
  if (!zero && !ParseWithUnit(text, kTimeUnits, &nanoseconds)) {
    return Bad(text, "a time such as 500ms, 30s, 2m or 1h");
  }
  if (nanoseconds > 366 * 24 * 3600e9) return Bad(text, "a time of at most 8784h");
  return std::chrono::nanoseconds(std::llround(nanoseconds));
}

std::string FormatDuration(std::chrono::nanoseconds time) {
  const int64_t count = time.count();
  if (count == 0) return "0s";
  constexpr std::pair<int64_t, absl::string_view> kUnits[] = {
      {3600000000000, "h"}, {60000000000, "m"}, {1000000000, "s"}, {1000000, "ms"}};
  for (const auto& [factor, name] : kUnits) {
    if (count % factor == 0) return absl::StrCat(count / factor, name);
  }
  return absl::StrCat(count / 1000, "us");
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  for (const absl::string_view yes : {"true", "yes", "on", "1"}) {
    if (absl::EqualsIgnoreCase(text, yes)) return true;
  }
  for (const absl::string_view no : {"false", "no", "off", "0"}) {
    if (absl::EqualsIgnoreCase(text, no)) return false;
  }
  return Bad(text, "true or false");
}

absl::StatusOr<int32_t> ParseInt(absl::string_view text, int32_t at_least, int32_t at_most) {
  int32_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= at_least && value <= at_most) return value;
  if (at_most == std::numeric_limits<int32_t>::max()) {
    return Bad(text, absl::StrCat("a number of at least ", at_least));
  }
  return Bad(text, absl::StrCat("a number of ", at_least, " to ", at_most));
}

absl::StatusOr<DeviceChoice> ParseDevice(absl::string_view text) {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return DeviceChoice{Kind::kAuto};
  if (text == "cpu") return DeviceChoice{Kind::kCpu};
  if (text == "cuda") return DeviceChoice{Kind::kCuda};
  if (!absl::ConsumePrefix(&text, "cuda:")) return Bad(text, "auto, cpu, cuda or cuda:N");
  STRATA_ASSIGN_OR_RETURN(const int32_t index, ParseInt(text, 0, kCudaIndexMax));
  return DeviceChoice{Kind::kCuda, index};
}

std::string FormatDevice(const DeviceChoice& device) {
  switch (device.kind) {
    case DeviceChoice::Kind::kAuto:
      return "auto";
    case DeviceChoice::Kind::kCpu:
      return "cpu";
    case DeviceChoice::Kind::kCuda:
      break;
  }
  return device.cuda_index == 0 ? "cuda" : absl::StrCat("cuda:", device.cuda_index);
}

absl::StatusOr<std::vector<ColdLayers>> ParseColdLayers(absl::string_view text) {
  std::vector<ColdLayers> layers;
  if (text.empty()) return layers;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits(':', 1));
    const std::vector<absl::string_view> range = absl::StrSplit(parts.first, '-');
    if (range.size() > 2) return Bad(item, "layers and a format, as in 0-1:i4");
    ColdLayers entry;
    STRATA_ASSIGN_OR_RETURN(entry.first, ParseInt(range.front(), 0, kLayersMax));
    STRATA_ASSIGN_OR_RETURN(entry.last, ParseInt(range.back(), 0, kLayersMax));
    STRATA_ASSIGN_OR_RETURN(entry.kinds, ParseFormatName(parts.second));
    layers.push_back(entry);
  }
  return layers;
}

std::string FormatColdLayers(const std::vector<ColdLayers>& layers) {
  return absl::StrJoin(layers, ",", [](std::string* out, const ColdLayers& entry) {
    absl::StrAppend(out, entry.first);
    if (entry.last != entry.first) absl::StrAppend(out, "-", entry.last);
    absl::StrAppend(out, ":", FormatName(entry.kinds));
  });
}

}  // namespace strata
