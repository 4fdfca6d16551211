// Streams, events, buffers and copies of a CUDA backend: what they guarantee, what they say when
// something fails, and that nothing stays behind.

#include <cuda_runtime_api.h>

#include <cstring>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/upload_ring.h"
#include "tests/cuda/executor/control.h"

namespace strata {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class CudaMemoryTest : public ::testing::Test {
 protected:
  ~CudaMemoryTest() override {
    executor::ClearFailures();
    executor::SetDriverPresent(true);
    executor::SetDeviceMemory(size_t{4} << 30);
    executor::SetStreams("eager");
  }
  static std::shared_ptr<cuda::CudaDevice> Open() {
    auto device = cuda::CudaDevice::Open(0);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }
  static std::string ErrorOf(const absl::Status& status) { return std::string(status.message()); }
};

TEST_F(CudaMemoryTest, BuffersAreZeroAlignedAndGoWithTheirOwner) {
  {
    const auto device = Open();
    const auto memory = cuda::MakeCudaMemory(device);
    auto buffer = memory->AllocateDevice(1000);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
    std::vector<std::byte> host(1000, std::byte{1});
    ASSERT_TRUE(memory->Download(buffer->data(), 1000, host.data()).ok());
    EXPECT_THAT(host, Each(std::byte{0}));
    auto pinned = memory->AllocatePinned(5000);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned->data()) % 4096, 0u);
    EXPECT_EQ(pinned->size(), 5000u);
    for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(pinned->data()[i], std::byte{0});
    const executor::LiveObjects live = executor::CountLive();
    EXPECT_EQ(live.device_allocations, 1u);
    EXPECT_EQ(live.pinned_allocations, 1u);
    auto empty = memory->AllocateDevice(0);
    EXPECT_TRUE(empty.ok() && empty->data() == nullptr && empty->size() == 0);
  }
  const executor::LiveObjects live = executor::CountLive();
  EXPECT_EQ(live.device_allocations + live.pinned_allocations + live.streams + live.events, 0u);
}

TEST_F(CudaMemoryTest, AFullDeviceIsRefusedWithWhatWasAskedAndWhatIsFree) {
  const auto memory = cuda::MakeCudaMemory(Open());
  executor::SetDeviceMemory(1 << 20);
  auto half = memory->AllocateDevice(1 << 19);
  ASSERT_TRUE(half.ok()) << half.status();
  const auto available = memory->AvailableDevice();
  ASSERT_TRUE(available.ok());
  EXPECT_EQ(available->bytes, 1u << 19);
  EXPECT_EQ(available->bound_by, "cuda:0");
  const auto refused = memory->AllocateDevice(1 << 20).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(ErrorOf(refused), AllOf(HasSubstr("cudaMalloc(1048576 bytes) failed: "
                                                "cudaErrorMemoryAllocation ("),
                                      HasSubstr("524288 bytes of device memory were free")));
}

TEST_F(CudaMemoryTest, ACallThatFailsIsNamed) {
  const auto memory = cuda::MakeCudaMemory(Open());
  executor::FailNext("cudaHostAlloc", cudaErrorMemoryAllocation);
  EXPECT_THAT(ErrorOf(memory->AllocatePinned(100).status()),
              AllOf(HasSubstr("cudaHostAlloc("), HasSubstr("cudaErrorMemoryAllocation")));
  auto buffer = *memory->AllocateDevice(4);
  int value = 0;
  executor::FailNext("cudaMemcpyAsync", cudaErrorIllegalAddress);
  EXPECT_THAT(ErrorOf(memory->Download(buffer.data(), 4, &value)),
              AllOf(HasSubstr("cudaMemcpyAsync("), HasSubstr("cudaErrorIllegalAddress (")));
  executor::FailNext("cudaStreamSynchronize", cudaErrorLaunchFailure);
  const absl::Status status = memory->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(ErrorOf(status), HasSubstr("cudaErrorLaunchFailure"));
  EXPECT_TRUE(memory->Synchronize().ok());
}

TEST_F(CudaMemoryTest, WhatIsNotedComesOutOnceAndFirst) {
  const auto device = Open();
  device->Note(cudaErrorInvalidValue, "LaunchThis");
  device->Note(cudaErrorLaunchFailure, "LaunchThat");
  EXPECT_THAT(ErrorOf(device->Synchronize()),
              HasSubstr("LaunchThis failed: cudaErrorInvalidValue"));
  EXPECT_TRUE(device->Synchronize().ok());
}

TEST_F(CudaMemoryTest, AMachineWithoutADriverOrDeviceGetsOneSentence) {
  EXPECT_THAT(ErrorOf(CreateCudaBackend({.device = 7}).status()),
              HasSubstr("there is no CUDA device 7; this machine has 1"));
  executor::SetDriverPresent(false);
  const absl::Status status = CreateCudaBackend({}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(ErrorOf(status), AllOf(HasSubstr("this machine has no NVIDIA driver ("),
                                     HasSubstr("cudaErrorInsufficientDriver")));
  EXPECT_EQ(ErrorOf(status).find('\n'), std::string::npos);
}

// With streams that run as late as they may: what was Put earlier stays as it was for those who
// were enqueued to read it, however often the ring went round.
TEST_F(CudaMemoryTest, ARingKeepsWhatIsEnqueuedToBeRead) {
  ASSERT_TRUE(executor::SetStreams("lazy:3"));
  const auto device = Open();
  cuda::UploadRing ring(device);
  ASSERT_TRUE(ring.Reserve(1000).ok());
  constexpr int kPuts = 400;
  constexpr size_t kValues = 1000;
  auto copies = *cuda::CudaDevice::AllocateDevice(device, kPuts * kValues * sizeof(int));
  for (int i = 0; i < kPuts; ++i) {
    std::vector<int> values(kValues);
    std::iota(values.begin(), values.end(), i);
    const auto put = ring.Put(absl::MakeConstSpan(values));
    ASSERT_TRUE(put.ok()) << put.status();
    ASSERT_EQ(
        cudaMemcpyAsync(copies.data() + i * kValues * sizeof(int), *put, kValues * sizeof(int),
                        cudaMemcpyDeviceToDevice, device->stream().get()),
        cudaSuccess);
  }
  const auto memory = cuda::MakeCudaMemory(device);
  std::vector<int> host(kPuts * kValues);
  ASSERT_TRUE(memory->Download(copies.data(), host.size() * sizeof(int), host.data()).ok());
  for (int i = 0; i < kPuts; ++i) {
    ASSERT_EQ(host[i * kValues], i);
    ASSERT_EQ(host[(i + 1) * kValues - 1], i + static_cast<int>(kValues) - 1);
  }
}

TEST_F(CudaMemoryTest, ARingGrowsForWhatIsLargerThanAHalf) {
  ASSERT_TRUE(executor::SetStreams("lazy:4"));
  const auto device = Open();
  cuda::UploadRing ring(device);
  const std::vector<int> small = {1, 2, 3};
  const std::vector<int> large(100'000, 7);
  auto kept = *cuda::CudaDevice::AllocateDevice(device, 3 * sizeof(int));
  const auto first = ring.Put(absl::MakeConstSpan(small));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(cudaMemcpyAsync(kept.data(), *first, 3 * sizeof(int), cudaMemcpyDeviceToDevice,
                            device->stream().get()),
            cudaSuccess);
  const auto second = ring.Put(absl::MakeConstSpan(large));
  ASSERT_TRUE(second.ok()) << second.status();
  const auto memory = cuda::MakeCudaMemory(device);
  std::vector<int> host(large.size());
  ASSERT_TRUE(memory->Download(*second, host.size() * sizeof(int), host.data()).ok());
  EXPECT_EQ(host, large);
  ASSERT_TRUE(memory->Download(kept.data(), 3 * sizeof(int), host.data()).ok());
  EXPECT_EQ(host[2], 3);
}

}  // namespace
}  // namespace strata
