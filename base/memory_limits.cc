#include "base/memory_limits.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/small_file.h"

namespace strata {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

// A file that holds one number; "max" and anything else that is no number bound nothing.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kFileBytesMax);
  uint64_t value = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) {
    return std::nullopt;
  }
  return value;
}

// The kB value of a "Name:   123 kB" line of /proc files.
std::optional<uint64_t> ReadKilobytes(const std::string& path, absl::string_view name) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kFileBytesMax);
  if (!text.ok()) return std::nullopt;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::ConsumePrefix(&line, name) || !absl::ConsumePrefix(&line, ":")) continue;
    line = absl::StripAsciiWhitespace(line);
    absl::ConsumeSuffix(&line, " kB");
    uint64_t value = 0;
    if (absl::SimpleAtoi(line, &value)) return value * 1024;
  }
  return std::nullopt;
}

void Bound(uint64_t bytes, std::string name, AvailableBytes* available) {
  if (bytes >= available->bytes) return;
  available->bytes = bytes;
  available->bound_by = std::move(name);
}

// One cgroup directory: what its limit leaves. Page cache counts as usage there but is given back
// under pressure, so it is added again.
void BoundByCgroup(const std::string& directory, const char* limit_file, const char* usage_file,
                   AvailableBytes* available) {
  const std::optional<uint64_t> limit = ReadNumber(directory + limit_file);
  if (!limit.has_value()) return;
  const uint64_t usage = ReadNumber(directory + usage_file).value_or(0);
  uint64_t cache = 0;
  if (const auto stat = ReadSmallFile(directory + "/memory.stat", kFileBytesMax); stat.ok()) {
    for (absl::string_view line : absl::StrSplit(*stat, '\n')) {
      uint64_t value = 0;
      if (absl::ConsumePrefix(&line, "inactive_file ") && absl::SimpleAtoi(line, &value)) {
        cache = value;
      }
    }
  }
  const uint64_t used = usage > cache ? usage - cache : 0;
  Bound(*limit > used ? *limit - used : 0, directory + limit_file, available);
}

// The process's cgroup and every one above it: each may set a limit. In a container the path seen
// in /proc/self/cgroup may not exist below the mounted root; then only the root itself is read.
void BoundByAncestors(const std::string& root, absl::string_view path, const char* limit_file,
                      const char* usage_file, AvailableBytes* available) {
  std::string below(absl::StripSuffix(path, "/"));
  while (true) {
    BoundByCgroup(root + below, limit_file, usage_file, available);
    if (below.empty()) return;
    below.resize(below.rfind('/') == std::string::npos ? 0 : below.rfind('/'));
  }
}

void BoundByCgroups(const MemoryLimitRoots& roots, AvailableBytes* available) {
  const auto text = ReadSmallFile(roots.proc + "/self/cgroup", kFileBytesMax);
  if (!text.ok()) return;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) {
      BoundByAncestors(roots.cgroup, fields[2], "/memory.max", "/memory.current", available);
      continue;
    }
    for (absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      if (controller != "memory") continue;
      BoundByAncestors(roots.cgroup + "/memory", fields[2], "/memory.limit_in_bytes",
                       "/memory.usage_in_bytes", available);
    }
  }
}

void BoundByAddressSpace(const MemoryLimitRoots& roots, AvailableBytes* available) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const uint64_t used = ReadKilobytes(roots.proc + "/self/status", "VmSize").value_or(0);
  Bound(limit.rlim_cur > used ? limit.rlim_cur - used : 0, "RLIMIT_AS", available);
}

}  // namespace

absl::StatusOr<AvailableBytes> AvailableMemory(const MemoryLimitRoots& roots) {
  const auto free = ReadKilobytes(roots.proc + "/meminfo", "MemAvailable");
  if (!free.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("cannot read MemAvailable from ", roots.proc, "/meminfo"));
  }
  AvailableBytes available{*free, "MemAvailable"};
  BoundByCgroups(roots, &available);
  BoundByAddressSpace(roots, &available);
  return available;
}

absl::StatusOr<AvailableBytes> AvailableDisk(absl::string_view path) {
  struct statvfs info {};
  const std::string name(path);
  if (statvfs(name.c_str(), &info) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot ask for the free space at ", name, ": ", std::strerror(errno)));
  }
  return AvailableBytes{size_t{1} * info.f_bavail * info.f_frsize, "free disk space"};
}

}  // namespace strata
