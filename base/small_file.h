#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace strata {

// The bytes of a file that should be small: a configuration, a certificate, a list of tokens.
// InvalidArgument naming the file where it cannot be read or has more than `bytes_max` bytes.
inline absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max) {
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof())) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has more than ", bytes_max, " bytes, the most this file may have"));
  }
  return text;
}

}  // namespace strata
