// Each PTX wrapper against a scalar formula of the PTX ISA: on the executor this checks the
// emulation, on a GPU the wrapper. The fragment layouts are written from the ISA's text as strides,
// not shared with the emulation.

#include <random>

#include "base/half.h"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/ptx_test_kernels_launch.h"

namespace strata {
namespace {

// Element (row, column) of value `v` of `lane`, as row + rows * column.
int OffsetA16(int lane, int v) {  // 16x16
  return (lane % 4) * 32 + lane / 4 + (v & 1) * 16 + (v >> 1 & 1) * 8 + (v >> 2) * 128;
}
int OffsetB16(int lane, int v) {  // 16x8: column + 8 * row
  return (lane % 4) * 16 + lane / 4 + (v & 1) * 8 + (v >> 1) * 64;
}
int OffsetC(int lane, int v) {  // 16x8
  return (lane % 4) * 32 + lane / 4 + (v & 1) * 16 + (v >> 1) * 8;
}

TEST(Ptx, MmaF16) {
  std::mt19937 random(5);
  const auto small = [&random] { return static_cast<float>(static_cast<int>(random() % 9) - 4); };
  float a[16][16], b[16][8];  // whole numbers: sums are exact in any order
  for (auto& row : a) {
    for (float& x : row) x = small();
  }
  for (auto& row : b) {
    for (float& x : row) x = small();
  }
  std::vector<uint32_t> fragment_a(128), fragment_b(64);
  std::vector<float> fragment_c(128);
  for (float& x : fragment_c) x = small();
  for (int lane = 0; lane < 32; ++lane) {
    for (int v = 0; v < 8; ++v) {
      const int offset = OffsetA16(lane, v);
      fragment_a[lane * 4 + v / 2] |= uint32_t{FloatToHalf(a[offset % 16][offset / 16])}
                                      << (16 * (v % 2));
    }
    for (int v = 0; v < 4; ++v) {
      const int offset = OffsetB16(lane, v);
      fragment_b[lane * 2 + v / 2] |= uint32_t{FloatToHalf(b[offset / 8][offset % 8])}
                                      << (16 * (v % 2));
    }
  }
  const DeviceBuffer<uint32_t> device_a(fragment_a), device_b(fragment_b);
  const DeviceBuffer<float> device_c(fragment_c);
  DeviceBuffer<float> device_d(128);
  ASSERT_EQ(LaunchMmaF16(device_a.data(), device_b.data(), device_c.data(), device_d.data()),
            cudaSuccess);
  const std::vector<float> d = device_d.Download();
  for (int lane = 0; lane < 32; ++lane) {
    for (int v = 0; v < 4; ++v) {
      const int offset = OffsetC(lane, v), row = offset % 16, column = offset / 16;
      float expected = fragment_c[lane * 4 + v];
      for (int k = 0; k < 16; ++k) expected += a[row][k] * b[k][column];
      EXPECT_EQ(d[lane * 4 + v], expected) << "row " << row << " column " << column;
    }
  }
}

}  // namespace
}  // namespace strata
