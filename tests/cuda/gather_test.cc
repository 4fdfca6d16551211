#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/attention_launch.h"
#include "tests/cuda/device_buffer.h"

namespace strata {
namespace {

// Pages of all sizes from mapped host memory, none of whose neighbours may change.
TEST(CudaGather, CopiesEveryStretchAndNothingElse) {
  std::mt19937 random(3);
  std::vector<uint64_t> sizes = {16, 0, 32, 64 * 3, 16 * 1023, 16 * 1024, 16 * 1025, 13824};
  for (int i = 0; i < 30; ++i) sizes.push_back(16 * (random() % 300));
  size_t total = 0;
  for (uint64_t size : sizes) total += size + 16;  // and a gap behind each
  std::byte* host = nullptr;
  STRATA_CUDA_OK(cudaHostAlloc(reinterpret_cast<void**>(&host), total, cudaHostAllocMapped));
  for (size_t i = 0; i < total; ++i) host[i] = static_cast<std::byte>(random());
  void* mapped = nullptr;
  STRATA_CUDA_OK(cudaHostGetDevicePointer(&mapped, host, 0));

  DeviceBuffer<std::byte> target{std::vector<std::byte>(total, std::byte{0xee})};
  std::vector<cuda::GatherCopy> copies;
  std::vector<std::byte> expected(total, std::byte{0xee});
  size_t from = total, to = 0;  // sources from the end, targets from the start
  for (uint64_t size : sizes) {
    from -= size + 16;
    copies.push_back({static_cast<std::byte*>(mapped) + from, target.data() + to, size});
    if (size != 0) std::memcpy(&expected[to], host + from, size);
    to += size + 16;
  }
  const DeviceBuffer<cuda::GatherCopy> list(copies);
  ASSERT_EQ(cuda::LaunchGather(list.data(), static_cast<int32_t>(copies.size()), nullptr),
            cudaSuccess);
  STRATA_CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(target.Download(), expected);
  EXPECT_EQ(cuda::LaunchGather(nullptr, 0, nullptr), cudaSuccess);
  STRATA_CUDA_OK(cudaFreeHost(host));
}

}  // namespace
}  // namespace strata
