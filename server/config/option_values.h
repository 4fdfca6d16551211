#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/server_options.h"

namespace strata {

// Values as people write them in flags, files and the environment. Each Format gives what its Parse
// takes, exactly. Errors quote the value and say what is expected.

// 1024, 64MiB, 1.5GiB, 2GB; B, KiB, MiB, GiB, TiB and the decimal KB, MB, GB, TB.
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);
std::string FormatSize(uint64_t bytes);

// 500ms, 30s, 2m, 1h; a unit is required, except after 0.
absl::StatusOr<std::chrono::nanoseconds> ParseDuration(absl::string_view text);
std::string FormatDuration(std::chrono::nanoseconds time);

// true, false, yes, no, on, off, 1, 0.
absl::StatusOr<bool> ParseBool(absl::string_view text);

absl::StatusOr<int32_t> ParseInt(absl::string_view text, int32_t at_least, int32_t at_most);

// auto, cpu, cuda (the first GPU) or cuda:N. Its Format is FormatDevice (server_options.h).
absl::StatusOr<DeviceChoice> ParseDevice(absl::string_view text);

// "0-1:i4,2:k4v2": layers and their format.
absl::StatusOr<std::vector<ColdLayers>> ParseColdLayers(absl::string_view text);
std::string FormatColdLayers(const std::vector<ColdLayers>& layers);

}  // namespace strata
