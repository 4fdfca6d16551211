// Pages of pinned memory on their way to device memory.

#include "kernels/cuda/page_stage.h"

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda/executor/control.h"

namespace strata::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr PageFormat kI4{KvKind::kI4, KvKind::kI4, 1, 32};

// Streams as late as they may be: a half that is filled too early, or read before it is filled,
// shows.
class PageStageTest : public ::testing::Test {
 protected:
  PageStageTest() {
    STRATA_CHECK(executor::SetStreams("lazy:11"));
    device_ = *CudaDevice::Open(0);
  }
  ~PageStageTest() override {
    EXPECT_TRUE(device_->Synchronize().ok());
    executor::SetStreams("eager");
  }

  // Pages in pinned memory, each full of one byte.
  PageRun Pages(const std::vector<uint8_t>& fills, KvKind read = KvKind::kI4) {
    std::vector<KvPageView>& views = views_.emplace_back();
    for (const uint8_t fill : fills) {
      buffers_.push_back(*CudaDevice::AllocatePinned(device_, kI4.Bytes()));
      std::byte* base = buffers_.back().data();
      std::memset(base, fill, kI4.Bytes());
      views.push_back({base, base + kI4.BaseBytes(), 0});
    }
    const auto count = static_cast<int32_t>(fills.size());
    return {.stored = kI4,
            .read_k = read,
            .read_v = read,
            .first_block = 0,
            .page_count = count,
            .tokens = 64 * count,
            .pages = views.data(),
            .on_host = true};
  }
  static std::vector<bool> OnDevice(const PageRun& run) {
    std::vector<bool> on_device;
    for (int32_t i = 0; i < run.page_count; ++i) on_device.push_back(IsDevice(run.pages[i].base));
    return on_device;
  }
  static bool IsDevice(const void* p) {
    cudaPointerAttributes attributes{};
    STRATA_CHECK(cudaPointerGetAttributes(&attributes, p) == cudaSuccess);
    return attributes.type == cudaMemoryTypeDevice;
  }
  // Enqueues what reads the last byte of BASE and of REFINE of every page.
  void EnqueueReading(const PageRun& run) {
    for (int32_t i = 0; i < run.page_count; ++i) {
      const std::byte* ends[] = {run.pages[i].base + kI4.BaseBytes() - 1,
                                 run.pages[i].refine + kI4.RefineBytes() - 1};
      for (const std::byte* end : ends) {
        read_.push_back(*CudaDevice::AllocatePinned(device_, 1));
        STRATA_CHECK(cudaMemcpyAsync(read_.back().data(), end, 1, cudaMemcpyDefault,
                                     device_->stream().get()) == cudaSuccess);
      }
    }
  }
  std::vector<int> TakeRead() {
    STRATA_CHECK(device_->Synchronize().ok());
    std::vector<int> bytes;
    for (const Buffer& buffer : read_) bytes.push_back(static_cast<int>(buffer.data()[0]));
    read_.clear();
    return bytes;
  }

  std::shared_ptr<CudaDevice> device_;
  std::vector<Buffer> buffers_;
  std::vector<Buffer> read_;
  std::deque<std::vector<KvPageView>> views_;
};

TEST_F(PageStageTest, PutsPagesIntoDeviceMemory) {
  PageStage stage(device_);
  ASSERT_TRUE(stage.Reserve(1 << 20).ok());
  const PageRun run = Pages({7, 8, 9});
  const AttentionSequence sequence = {0, 1, 191, {&run, 1}};
  const auto staged = stage.Stage({&sequence, 1});
  ASSERT_TRUE(staged.ok()) << staged.status();
  const PageRun& gathered = (*staged)[0].runs[0];
  EXPECT_THAT(OnDevice(gathered), Each(true));
  EXPECT_THAT(OnDevice(run), Each(false));  // the caller's run is as it was
  EnqueueReading(gathered);
  ASSERT_TRUE(stage.Passed().ok());
  EXPECT_THAT(TakeRead(), ElementsAre(7, 7, 8, 8, 9, 9));
}

// Many layers ahead of the device: a half is filled again only behind what reads it.
TEST_F(PageStageTest, HalvesTakeTurns) {
  PageStage stage(device_);
  ASSERT_TRUE(stage.Reserve(64 << 10).ok());
  std::vector<int> expected;
  for (uint8_t layer = 1; layer <= 9; ++layer) {
    const PageRun run = Pages({layer, static_cast<uint8_t>(100 + layer)});
    const AttentionSequence sequence = {0, 1, 127, {&run, 1}};
    const auto staged = stage.Stage({&sequence, 1});
    ASSERT_TRUE(staged.ok()) << staged.status();
    EnqueueReading((*staged)[0].runs[0]);
    ASSERT_TRUE(stage.Passed().ok());
    expected.insert(expected.end(), {layer, layer, 100 + layer, 100 + layer});
  }
  EXPECT_EQ(TakeRead(), expected);
}

TEST_F(PageStageTest, WhatDoesNotFitIsReadInPlaceLongSequencesFirst) {
  PageStage stage(device_);
  const size_t page = (kI4.BaseBytes() + 255) / 256 * 256 + (kI4.RefineBytes() + 255) / 256 * 256;
  ASSERT_TRUE(stage.Reserve(2 * (3 * page + 256)).ok());
  const PageRun decoding = Pages({1, 2});
  const PageRun prompt = Pages({3, 4});
  const AttentionSequence sequences[] = {{0, 1, 127, {&decoding, 1}}, {1, 64, 64, {&prompt, 1}}};
  const auto staged = stage.Stage(sequences);
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_THAT(OnDevice((*staged)[1].runs[0]), ElementsAre(true, true));
  EXPECT_THAT(OnDevice((*staged)[0].runs[0]), ElementsAre(true, false));
  EnqueueReading((*staged)[0].runs[0]);
  EnqueueReading((*staged)[1].runs[0]);
  ASSERT_TRUE(stage.Passed().ok());
  EXPECT_THAT(TakeRead(), ElementsAre(1, 1, 2, 2, 3, 3, 4, 4));
}

TEST_F(PageStageTest, LoPlanesThatAreNotReadStay) {
  PageStage stage(device_);
  ASSERT_TRUE(stage.Reserve(1 << 20).ok());
  const PageRun run = Pages({5}, KvKind::kI2);
  const AttentionSequence sequence = {0, 1, 63, {&run, 1}};
  const auto staged = stage.Stage({&sequence, 1});
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_TRUE(IsDevice((*staged)[0].runs[0].pages[0].base));
  EXPECT_FALSE(IsDevice((*staged)[0].runs[0].pages[0].refine));
}

TEST_F(PageStageTest, LeavesSequencesAloneWhereNothingIsToBeGathered) {
  PageStage none(device_);
  ASSERT_TRUE(none.Reserve(0).ok());
  PageRun run = Pages({6});
  const AttentionSequence sequence = {0, 1, 63, {&run, 1}};
  EXPECT_EQ(none.Stage({&sequence, 1})->data(), &sequence);
  EXPECT_TRUE(none.Passed().ok());
  PageStage stage(device_);
  ASSERT_TRUE(stage.Reserve(1 << 20).ok());
  run.on_host = false;
  EXPECT_EQ(stage.Stage({&sequence, 1})->data(), &sequence);
  EXPECT_TRUE(stage.Passed().ok());
}

TEST_F(PageStageTest, TooLittleDeviceMemoryIsAnError) {
  PageStage stage(device_);
  EXPECT_TRUE(absl::IsResourceExhausted(stage.Reserve(size_t{1} << 40)));
}

}  // namespace
}  // namespace strata::cuda
