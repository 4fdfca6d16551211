#include "base/memory_limits.h"

#include <filesystem>

#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"

namespace strata {
namespace {

// A /proc and a /sys/fs/cgroup of the test's own.
class MemoryLimitsTest : public ::testing::Test {
 protected:
  MemoryLimitsTest() {
    Write("proc/meminfo", "MemTotal:  999 kB\nMemFree: 5 kB\nMemAvailable:    8000 kB\n");
    Write("proc/self/cgroup", "");
  }

  void Write(const std::string& path, const std::string& text) { folder_.Put(path, text); }
  absl::StatusOr<AvailableBytes> Read() const {
    return AvailableMemory({folder_.Path("proc"), folder_.Path("cgroup")});
  }
  AvailableBytes Available() const {
    const auto available = Read();
    EXPECT_TRUE(available.ok()) << available.status();
    return available.value_or(AvailableBytes{});
  }

  const TestFolder folder_;
};

TEST_F(MemoryLimitsTest, MemAvailableWithoutCgroups) {
  EXPECT_EQ(Available().bytes, 8000u * 1024);
  EXPECT_EQ(Available().bound_by, "MemAvailable");
}

TEST_F(MemoryLimitsTest, TheTightestCgroupAboveTheProcessBinds) {
  Write("proc/self/cgroup", "0::/pods/one\n");
  Write("cgroup/pods/one/memory.max", "max\n");
  Write("cgroup/pods/memory.max", "3000000\n");
  Write("cgroup/pods/memory.current", "1000000\n");
  Write("cgroup/pods/memory.stat", "anon 1\ninactive_file 200000\n");
  EXPECT_EQ(Available().bytes, 2200000u);  // the page cache would be given back
  EXPECT_NE(Available().bound_by.find("/pods/memory.max"), std::string::npos);
  Write("cgroup/memory.max", "1000\n");
  EXPECT_EQ(Available().bytes, 1000u);
}

TEST_F(MemoryLimitsTest, ContainerThatSeesOnlyItsOwnRoot) {
  Write("proc/self/cgroup", "0::/../../elsewhere\n");
  Write("cgroup/memory.max", "5000\n");
  Write("cgroup/memory.current", "6000\n");
  EXPECT_EQ(Available().bytes, 0u);
}

TEST_F(MemoryLimitsTest, VersionOne) {
  Write("proc/self/cgroup", "12:cpu,cpuacct:/x\n4:memory:/docker/abc\n");
  Write("cgroup/memory/docker/abc/memory.limit_in_bytes", "700000\n");
  Write("cgroup/memory/docker/abc/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(Available().bytes, 600000u);
}

TEST_F(MemoryLimitsTest, NoMeminfoIsAnError) {
  std::filesystem::remove(folder_.Path("proc/meminfo"));
  EXPECT_FALSE(Read().ok());
}

TEST(MemoryLimitsHereTest, ThisMachineHasMemoryAndDisk) {
  EXPECT_GT(AvailableMemory()->bytes, size_t{1} << 20);
  EXPECT_GT(AvailableDisk(::testing::TempDir())->bytes, 0u);
  EXPECT_FALSE(AvailableDisk("/no/such/place").ok());
}

}  // namespace
}  // namespace strata
