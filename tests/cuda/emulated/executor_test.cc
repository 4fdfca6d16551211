// The executor's fake runtime: what tests of the device's plumbing rely on.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/device_buffer.h"
#include "tests/cuda/executor/control.h"
#include "tests/cuda/ptx_test_kernels_launch.h"

namespace strata {
namespace {

using executor::CountLive;
using executor::FailNext;
using executor::LiveObjects;

// Leaves the executor as it was found, even when a test fails.
class ExecutorTest : public testing::Test {
 protected:
  void TearDown() override {
    executor::ClearFailures();
    executor::SetDriverPresent(true);
    executor::SetDeviceMemory(size_t{4} << 30);
    cudaGetLastError();
  }
};

TEST_F(ExecutorTest, FailsTheCallNamedOnce) {
  FailNext("cudaMalloc", cudaErrorMemoryAllocation, 1);
  void *first = nullptr, *second = nullptr, *third = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 64), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 64), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&third, 64), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(third), cudaSuccess);
}

TEST_F(ExecutorTest, FailsALaunch) {
  DeviceBuffer<float> values(64);
  FailNext("cudaLaunchKernel", cudaErrorLaunchFailure);
  const uint64_t before = executor::GetStats().launches;
  EXPECT_EQ(LaunchExp2(values.data(), values.data(), 64), cudaErrorLaunchFailure);
  EXPECT_EQ(executor::GetStats().launches, before);
  EXPECT_EQ(LaunchExp2(values.data(), values.data(), 64), cudaSuccess);
}

TEST_F(ExecutorTest, WithoutADriverEveryCallSaysSo) {
  executor::SetDriverPresent(false);
  int count = 7;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 64), cudaErrorInsufficientDriver);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInsufficientDriver);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInsufficientDriver), "cudaErrorInsufficientDriver");
}

TEST_F(ExecutorTest, CountsWhatIsAlive) {
  const LiveObjects before = CountLive();
  void *device = nullptr, *pinned = nullptr;
  cudaStream_t stream;
  cudaEvent_t event;
  std::vector<char> own(100);
  ASSERT_EQ(cudaMalloc(&device, 1000), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, 10, cudaHostAllocMapped), cudaSuccess);
  ASSERT_EQ(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  LiveObjects now = CountLive();
  EXPECT_EQ(now.device_allocations, before.device_allocations + 1);
  EXPECT_EQ(now.device_bytes, before.device_bytes + 1000);
  EXPECT_EQ(now.pinned_allocations, before.pinned_allocations + 2);
  EXPECT_EQ(now.streams, before.streams + 1);
  EXPECT_EQ(now.events, before.events + 1);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  now = CountLive();
  EXPECT_EQ(now.device_bytes, before.device_bytes);
  EXPECT_EQ(now.pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(now.streams, before.streams);
  EXPECT_EQ(now.events, before.events);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue) << "freed twice";
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
}

TEST_F(ExecutorTest, DeviceMemoryEnds) {
  executor::SetDeviceMemory(1 << 20);
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
  EXPECT_EQ(total, size_t{1} << 20);
  void *data = nullptr, *more = nullptr;
  ASSERT_EQ(cudaMalloc(&data, free_bytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  ASSERT_EQ(cudaFree(data), cudaSuccess);
}

TEST_F(ExecutorTest, SaysWhereAPointerLies) {
  const DeviceBuffer<int> device(4);
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 64, cudaHostAllocMapped), cudaSuccess);
  int own = 0;
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, device.data() + 3), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 63), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &own), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  void* mapped = nullptr;
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, pinned, 0), cudaSuccess);
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, &own, 0), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(ExecutorTest, RefusesCopiesThatLieAboutTheirEnds) {
  DeviceBuffer<int> device(4);
  int host[4] = {1, 2, 3, 4};
  EXPECT_EQ(cudaMemcpy(device.data(), host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device.data(), host, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device.data() + 1, host, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue)
      << "past the end";
  EXPECT_EQ(cudaMemset(device.data() + 1, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device.data(), host, 16, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(device.Download(), (std::vector<int>{1, 2, 3, 4}));
}

TEST_F(ExecutorTest, RefusesImpossibleLaunches) {
  EXPECT_EQ(LaunchEmpty(dim3(1), dim3(1025), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchEmpty(dim3(1), dim3(0), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchEmpty(dim3(1, 65536), dim3(1), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchEmpty(dim3(1), dim3(1), (48 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchEmpty(dim3(1), dim3(1024), 48 << 10), cudaSuccess);
}

TEST_F(ExecutorTest, FreshDeviceMemoryIsNaN) {
  const DeviceBuffer<uint32_t> values(4);
  EXPECT_THAT(values.Download(), testing::Each(0xffffffffu));
}

TEST_F(ExecutorTest, HostFunctionsRunInOrderAndMayWaitForOtherThreads) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  std::atomic<bool> go = false;
  int order = 0;
  struct State {
    std::atomic<bool>* go;
    int* order;
  } state{&go, &order};
  // While the function waits, another thread must be able to call the runtime.
  std::thread other([&go] {
    int device = 0;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    go = true;
  });
  ASSERT_EQ(cudaLaunchHostFunc(
                stream,
                [](void* p) {
                  auto* my = static_cast<State*>(p);
                  while (!*my->go) std::this_thread::yield();
                  *my->order = *my->order * 10 + 1;
                },
                &state),
            cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(
                stream,
                [](void* p) {
                  auto* my = static_cast<State*>(p);
                  *my->order = *my->order * 10 + 2;
                },
                &state),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(order, 12);
  other.join();
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Two threads on streams of their own, as the engine and the mover are.
TEST_F(ExecutorTest, ThreadsShareTheRuntime) {
  const auto work = [](float exponent) {
    cudaStream_t stream;
    STRATA_CUDA_OK(cudaStreamCreate(&stream));
    for (int round = 0; round < 20; ++round) {
      const DeviceBuffer<float> in(std::vector<float>(100, exponent));
      DeviceBuffer<float> out(100);
      STRATA_CUDA_OK(LaunchExp2(in.data(), out.data(), 100));
      EXPECT_THAT(out.Download(), testing::Each(std::exp2(exponent)));
    }
    STRATA_CUDA_OK(cudaStreamDestroy(stream));
  };
  std::thread first(work, 1.0f), second(work, 2.0f);
  first.join();
  second.join();
}

TEST_F(ExecutorTest, EventsFireAfterTheWorkBeforeThem) {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(begin), cudaSuccess) << "never recorded: complete";
  DeviceBuffer<int> device(4);
  ASSERT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device.data(), 0, 16, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(begin), cudaSuccess);
  float milliseconds = -1;
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(device.Download(), std::vector<int>(4));
  ASSERT_EQ(cudaEventDestroy(begin), cudaSuccess);
  ASSERT_EQ(cudaEventDestroy(end), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(ExecutorTest, LateStreamsRunNothingBeforeSomebodyWaits) {
  const std::string before = executor::GetStreams();
  ASSERT_TRUE(executor::SetStreams("lazy:1"));
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  DeviceBuffer<int> device(4);
  const auto late = executor::GetStats().launches;
  ASSERT_EQ(cudaMemsetAsync(device.data(), 0, 16, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(executor::GetStats().launches, late);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  ASSERT_TRUE(executor::SetStreams(before));
}

TEST_F(ExecutorTest, KnowsItsModes) {
  EXPECT_FALSE(executor::SetSchedule("sideways"));
  EXPECT_FALSE(executor::SetStreams("lazy"));
}

}  // namespace
}  // namespace strata
