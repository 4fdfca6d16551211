#include "base/small_file.h"

#include <sstream>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"

namespace strata {
namespace {

TEST(SmallFileTest, ReadsEveryByteUpToTheLimit) {
  const TestFolder folder;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{16384}, size_t{16385}, size_t{50'000}}) {
    std::string text(size, 'x');
    if (size > 1) text[1] = '\0';
    const std::string path = folder.Put("file", text);
    const auto read = ReadSmallFile(path, size);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, text);
    if (size == 0) continue;
    EXPECT_EQ(ReadSmallFile(path, size - 1).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SmallFileTest, WhatCannotBeReadIsNamed) {
  for (const char* path : {"/nonexistent", "/proc"}) {
    const absl::Status status = ReadSmallFile(path, 100).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(status.message(), std::string("cannot read ") + path);
  }
  EXPECT_EQ(ReadSmallFile("/dev/zero", 100).status().message(),
            "/dev/zero has more than 100 bytes, the most it may have");
}

TEST(SmallFileTest, ReadsStreamsTheSameWay) {
  std::istringstream in("text");
  EXPECT_EQ(*ReadAtMost(&in, "standard input", 4), "text");
}

}  // namespace
}  // namespace strata
