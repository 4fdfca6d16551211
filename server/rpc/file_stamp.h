#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace strata::rpc {

// What tells one content of a file from another without reading it: a rewrite changes the time, a
// replacement the inode, also where a link to it is swapped, as Kubernetes does with mounted
// secrets. A file that cannot be looked at has the empty stamp.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t bytes = -1;
  int64_t changed_ns = 0;

  static FileStamp Of(const std::string& path) {
    struct stat facts {};
    if (path.empty() || stat(path.c_str(), &facts) != 0) return {};
    return {facts.st_dev, facts.st_ino, facts.st_size,
            facts.st_ctim.tv_sec * 1000000000 + facts.st_ctim.tv_nsec};
  }
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

}  // namespace strata::rpc
