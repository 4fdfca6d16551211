#include "base/small_file.h"

#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace strata {

absl::StatusOr<std::string> ReadAtMost(std::istream* in, const std::string& name,
                                       size_t bytes_max) {
  std::string text;
  char part[16384];
  while (in->good()) {
    in->read(part, sizeof(part));
    text.append(part, static_cast<size_t>(in->gcount()));
    if (text.size() <= bytes_max) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has more than ", bytes_max, " bytes, the most it may have"));
  }
  // At the end a stream has failed too: it read less than a whole part.
  if (in->bad() || !in->eof())
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", name));
  return text;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  return ReadAtMost(&file, path, bytes_max);
}

}  // namespace strata
