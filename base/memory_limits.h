#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// What this process may still take, and what bounds it: "MemAvailable", a cgroup file, or a
// resource limit, by name so that an error can say which one to raise.
struct AvailableBytes {
  size_t bytes = 0;
  std::string bound_by;
};

// Where the kernel's files are; tests point these at directories of their own.
struct MemoryLimitRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// Memory this process may still allocate: the least of MemAvailable, what every cgroup (v2 and v1)
// above the process leaves, and the address-space limit. A file that is missing or unreadable
// bounds nothing; MemAvailable must be readable.
absl::StatusOr<AvailableBytes> AvailableMemory(const MemoryLimitRoots& roots = {});

// Bytes an unprivileged process may still write to the file system that holds `path` (an existing
// file or directory).
absl::StatusOr<AvailableBytes> AvailableDisk(absl::string_view path);

}  // namespace strata
