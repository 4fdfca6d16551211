#include "tiering/io_engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "gtest/gtest.h"
#include "tests/tiering/cache_driver.h"
#include "tests/tiering/faulty_io.h"

namespace strata {
namespace {

constexpr size_t kPage = IoEngine::kAlignment;

struct CountingRequest final : IoRequest {
  void Complete(int64_t transferred) override {
    result.store(transferred);
    completions.fetch_add(1);
    completions.notify_all();
  }
  int64_t Wait(int times = 1) {
    for (int seen = completions.load(); seen < times; seen = completions.load()) {
      completions.wait(seen);
    }
    return result.load();
  }
  std::atomic<int64_t> result{0};
  std::atomic<int> completions{0};
};

class IoEngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    fd_ = open(file_.path().c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_GE(fd_, 0);
    memory_ = *AlignedBuffer::Allocate(64 * kPage);
  }
  void TearDown() override { close(fd_); }

  std::unique_ptr<IoEngine> Make(int32_t depth) {
    auto engine = MakeIoEngine(GetParam(), fd_, depth);
    if (!engine.ok()) return nullptr;
    EXPECT_EQ((*engine)->name(), GetParam());
    return *std::move(engine);
  }
  void Aim(CountingRequest* request, bool write, int page, int count = 1) {
    request->write = write;
    request->offset = page * kPage;
    request->data = memory_.data() + page * kPage;
    request->bytes = count * kPage;
  }

  ScratchPath file_;
  int fd_ = -1;
  AlignedBuffer memory_;
};

TEST_P(IoEngineTest, ReadsWhatWasWritten) {
  const auto engine = Make(4);
  if (engine == nullptr) GTEST_SKIP() << GetParam() << " is refused here";
  std::vector<CountingRequest> requests(64);
  for (int i = 0; i < 64; ++i) {
    std::memset(memory_.data() + i * kPage, i + 1, kPage);
    Aim(&requests[i], true, i);
    engine->Submit(&requests[i]);
  }
  for (CountingRequest& request : requests) EXPECT_EQ(request.Wait(), static_cast<int64_t>(kPage));
  std::memset(memory_.data(), 0, memory_.size());
  for (int i = 0; i < 64; ++i) {
    Aim(&requests[i], false, i);
    engine->Submit(&requests[i]);
  }
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(requests[i].Wait(2), static_cast<int64_t>(kPage));
    EXPECT_EQ(memory_.data()[i * kPage + 17], static_cast<std::byte>(i + 1));
    EXPECT_EQ(requests[i].completions.load(), 2);
  }
  EXPECT_EQ(engine->counters().reads_completed, 64u);
  EXPECT_EQ(engine->counters().writes_submitted, 64u);
}

TEST_P(IoEngineTest, ReportsTheEndOfTheFileAndErrors) {
  const auto engine = Make(4);
  if (engine == nullptr) GTEST_SKIP() << GetParam() << " is refused here";
  ASSERT_EQ(ftruncate(fd_, kPage), 0);
  CountingRequest request;
  Aim(&request, false, 0, 2);
  engine->Submit(&request);
  EXPECT_EQ(request.Wait(), static_cast<int64_t>(kPage));  // short
  CountingRequest bad;
  Aim(&bad, false, 0);
  bad.data = reinterpret_cast<std::byte*>(kPage);  // nothing is mapped there
  engine->Submit(&bad);
  EXPECT_EQ(bad.Wait(), -EFAULT);
}

// The destructor waits for everything, and submissions from several threads mix.
TEST_P(IoEngineTest, CompletesEverythingBeforeItGoes) {
  auto engine = Make(2);
  if (engine == nullptr) GTEST_SKIP() << GetParam() << " is refused here";
  ASSERT_EQ(ftruncate(fd_, 64 * kPage), 0);
  std::vector<CountingRequest> requests(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t * 16; i < (t + 1) * 16; ++i) {
        Aim(&requests[i], i % 3 == 0, i);
        engine->Submit(&requests[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine.reset();
  for (CountingRequest& request : requests) EXPECT_EQ(request.completions.load(), 1);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineTest, ::testing::Values("threads", "io_uring"));

TEST(IoQueueTest, ReadsGoFirstButNeverStarveWrites) {
  IoQueue queue(2);
  std::vector<CountingRequest> requests(5);
  requests[0].write = requests[1].write = true;
  for (CountingRequest& request : requests) queue.Push(&request);
  EXPECT_EQ(queue.Start(), &requests[0]);  // no write is in flight: one goes
  EXPECT_EQ(queue.Start(), &requests[2]);
  EXPECT_EQ(queue.Start(), nullptr);  // depth
  queue.Done(false);
  EXPECT_EQ(queue.Start(), &requests[3]);
  queue.Done(false);
  EXPECT_EQ(queue.Start(), &requests[4]);
  queue.Done(true);
  EXPECT_EQ(queue.Start(), &requests[1]);
  EXPECT_FALSE(queue.idle());
  queue.Done(true);
  queue.Done(false);
  EXPECT_TRUE(queue.idle());
}

// The double itself: each kind of fault shows, and the data under it stays right.
TEST(FaultyIoTest, InjectsEachFault) {
  const ScratchPath file;
  const int fd = open(file.path().c_str(), O_RDWR | O_CREAT, 0600);
  AlignedBuffer memory = *AlignedBuffer::Allocate(4 * kPage);
  auto plan = std::make_shared<FaultPlan>(7);
  auto engine = FaultyIo(plan)("threads", fd, 4);
  ASSERT_TRUE(engine.ok());
  const auto transfer = [&](bool write) {
    CountingRequest request;
    request.write = write;
    request.data = memory.data();
    request.bytes = memory.size();
    (*engine)->Submit(&request);
    return request.Wait();
  };
  const auto full = static_cast<int64_t>(memory.size());
  EXPECT_EQ(transfer(true), full);
  plan->SetWrites({.error = 1, .error_number = ENOSPC});
  EXPECT_EQ(transfer(true), -ENOSPC);
  plan->SetReads({.short_transfer = 1});
  EXPECT_EQ(transfer(false), full / 2);
  plan->SetReads({.flip_read = 1});
  EXPECT_EQ(transfer(false), full);
  int ones = 0;
  for (size_t i = 0; i < memory.size(); ++i)
    ones += std::popcount(static_cast<uint8_t>(memory.data()[i]));
  EXPECT_EQ(ones, 1);
  plan->SetReads({});
  EXPECT_EQ(transfer(false), full);
  EXPECT_EQ(memory.data()[0], std::byte{0});
  plan->SetWrites({.lost_result = 1});
  memory.data()[0] = std::byte{9};
  EXPECT_EQ(transfer(true), -EIO);
  plan->SetWrites({.error = 1, .sectors_only = true});
  EXPECT_EQ(transfer(false), full);
  EXPECT_EQ(memory.data()[0], std::byte{9});  // it was written
  EXPECT_EQ(transfer(true), full);            // more than a sector
  plan->Hold();
  CountingRequest held;
  held.data = memory.data();
  held.bytes = kPage;
  (*engine)->Submit(&held);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(held.completions.load(), 0);
  plan->Open();
  EXPECT_EQ(held.Wait(), static_cast<int64_t>(kPage));
  engine->reset();
  close(fd);
}

}  // namespace
}  // namespace strata
