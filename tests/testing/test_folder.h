#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gtest/gtest.h"

namespace strata {

// A folder of its own, which goes with the object and all that is in it.
class TestFolder {
 public:
  TestFolder() : path_(::testing::TempDir() + "strata_XXXXXX") {
    STRATA_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return absl::StrCat(path_, "/", name); }

  // Gives the name a new file with this text, at once and as a mounted secret changes, and returns
  // its path. Folders in the name are created.
  std::string Put(const std::string& name, const std::string& text) const {
    const std::string path = Path(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path + ".part", std::ios::binary) << text;
    std::filesystem::rename(path + ".part", path);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace strata
