#include "tiering/cold_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/memory_limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/patience.h"
#include "tests/tiering/cache_driver.h"
#include "tests/tiering/faulty_io.h"
#include "tiering/cold_file.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using Result = ColdStore::Result;

class ColdStoreTest : public ::testing::Test {
 protected:
  ColdStoreTest()
      : options_(SmallOptions({.warm_blocks = 4, .cold_blocks = 8, .cold_path = file_.path()})),
        plan_(TierPlan::Make(options_)) {}

  ColdStoreOptions StoreOptions() {
    ColdStoreOptions store;
    store.path = options_.cold_path;
    store.bytes_max = options_.cold_bytes;
    store.identity.layers = options_.geometry.layers;
    store.identity.kv_heads = options_.geometry.kv_heads;
    store.identity.head_dim = options_.geometry.head_dim;
    store.identity.model_fingerprint = options_.model_fingerprint;
    store.identity.basis_hash = options_.basis_hash;
    store.identity.unit_bytes = static_cast<uint32_t>(options_.cold_unit_bytes);
    store.formats = options_.formats;
    store.layout = &plan_.record;
    return store;
  }
  std::unique_ptr<ColdStore> Open() {
    auto store = ColdStore::Open(StoreOptions(), &completions_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  template <typename Op>
  Result Await(Op* op) {
    Completion* done = completions_.WaitAll(kPatience);
    EXPECT_EQ(done, static_cast<Completion*>(op));
    return op->result;
  }
  // Fills every group with `seed` and writes it as `record`; publishes on success.
  Result Write(ColdStore* store, uint32_t record, int seed) {
    ColdStore::WriteOp op;
    EXPECT_TRUE(store->Prepare(&op).ok());
    std::memset(op.buffer.data(), seed, op.buffer.size());
    op.record = SlotId(record);
    store->Write(&op);
    const Result result = Await(&op);
    if (result == Result::kOk) store->Publish(op);
    return result;
  }
  Result Read(ColdStore* store, uint32_t record, int32_t group, std::byte* first) {
    ColdStore::ReadOp op;
    AlignedBuffer memory = *AlignedBuffer::Allocate(plan_.record.largest_group_bytes());
    op.record = SlotId(record);
    op.group = group;
    store->Read(&op, memory.data());
    const Result result = Await(&op);
    *first = memory.data()[0];
    return result;
  }
  Result Erase(ColdStore* store, uint32_t record) {
    ColdStore::EraseOp op;
    op.record = SlotId(record);
    store->Erase(&op);
    return Await(&op);
  }
  ColdInspection Inspect() {
    auto seen = ColdStore::Inspect(file_.path(), true);
    EXPECT_TRUE(seen.ok()) << seen.status();
    return seen.value_or(ColdInspection{});
  }
  void Poke(uint64_t offset, char byte) {
    const int fd = open(file_.path().c_str(), O_WRONLY);
    ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    ASSERT_EQ(fsync(fd), 0);
    close(fd);
  }

  ScratchPath file_;
  TierOptions options_;
  TierPlan plan_;
  CompletionQueue completions_;
};

TEST_F(ColdStoreTest, WritesReadsErases) {
  const auto store = Open();
  ASSERT_EQ(store->records(), 8);
  ASSERT_EQ(Write(store.get(), 3, 7), Result::kOk);
  ASSERT_EQ(Write(store.get(), 5, 9), Result::kOk);
  std::byte first{};
  for (int32_t group = 0; group < plan_.record.groups(); ++group) {
    EXPECT_EQ(Read(store.get(), 3, group, &first), Result::kOk);
    EXPECT_EQ(first, std::byte{7});
  }
  EXPECT_EQ(Inspect().records, 2u);
  EXPECT_EQ(Inspect().bytes, 2 * plan_.record.bytes());
  EXPECT_EQ(Inspect().damaged_records, 0u);
  ASSERT_EQ(Erase(store.get(), 3), Result::kOk);
  EXPECT_EQ(Inspect().records, 1u);
  EXPECT_EQ(Inspect().damaged_descriptors, 0u);
}

TEST_F(ColdStoreTest, FileIsPrivateAndWithinItsBudget) {
  const auto store = Open();
  struct stat info {};
  ASSERT_EQ(stat(file_.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_LE(static_cast<size_t>(info.st_size), options_.cold_bytes);
  EXPECT_EQ(static_cast<size_t>(info.st_size), cold_format::FileBytes(8, plan_.record.bytes()));
  // Preallocated: the disk cannot fill up under it.
  EXPECT_GE(size_t{512} * info.st_blocks, static_cast<size_t>(info.st_size));
}

TEST_F(ColdStoreTest, FlippedBitIsCaughtOnRead) {
  const auto store = Open();
  ASSERT_EQ(Write(store.get(), 1, 7), Result::kOk);
  const uint64_t record = cold_format::RecordOffset(1, 8, plan_.record.bytes());
  Poke(record + plan_.record.group(2).offset + 100, 6);
  std::byte first{};
  EXPECT_EQ(Read(store.get(), 1, 1, &first), Result::kOk);
  EXPECT_EQ(Read(store.get(), 1, 2, &first), Result::kCorrupt);
  EXPECT_EQ(Inspect().damaged_records, 1u);
}

TEST_F(ColdStoreTest, TruncatedFileIsAnIoError) {
  const auto store = Open();
  ASSERT_EQ(Write(store.get(), 7, 7), Result::kOk);
  ASSERT_EQ(truncate(file_.path().c_str(),
                     static_cast<off_t>(cold_format::RecordOffset(7, 8, plan_.record.bytes()))),
            0);
  std::byte first{};
  EXPECT_EQ(Read(store.get(), 7, 0, &first), Result::kIoError);
  EXPECT_GT(store->read_errors(), 0u);
  EXPECT_EQ(store->write_errors(), 0u);
}

TEST_F(ColdStoreTest, RestartStartsEmptyAndSaysWhy) {
  auto store = Open();
  EXPECT_EQ(store->note(), "");
  ASSERT_EQ(Write(store.get(), 3, 7), Result::kOk);
  store.reset();
  EXPECT_EQ(Inspect().records, 1u);
  store = Open();
  EXPECT_THAT(store->note(), HasSubstr("earlier run"));
  EXPECT_EQ(Inspect().records, 0u);
  ASSERT_EQ(Write(store.get(), 0, 8), Result::kOk);
  EXPECT_EQ(Inspect().records, 1u);
  store.reset();
  options_.model_fingerprint = 0x9999;
  store = Open();
  EXPECT_THAT(store->note(), HasSubstr("0000000000009999"));
  EXPECT_EQ(Inspect().records, 0u);
  store.reset();
  Poke(40, 9);  // the page format version
  store = Open();
  EXPECT_THAT(store->note(), HasSubstr("damaged"));
}

TEST_F(ColdStoreTest, ForeignFileIsLeftAlone) {
  const std::string precious(9000, 'x');
  std::ofstream(file_.path()) << precious;
  const auto store = ColdStore::Open(StoreOptions(), &completions_);
  ASSERT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store.status().message(), HasSubstr("not a Strata cold store"));
  std::ostringstream now;
  now << std::ifstream(file_.path()).rdbuf();
  EXPECT_EQ(now.str(), precious);
  EXPECT_FALSE(ColdStore::Inspect(file_.path(), true).ok());
}

// Bits flipped anywhere in the superblock and the descriptors: what is left is told or refused, and
// a store opened over it is empty.
TEST_F(ColdStoreTest, DamagedFilesNeverCrash) {
  auto store = Open();
  ASSERT_EQ(Write(store.get(), 1, 7), Result::kOk);
  ASSERT_EQ(Write(store.get(), 6, 9), Result::kOk);
  store.reset();
  std::ostringstream read;
  read << std::ifstream(file_.path(), std::ios::binary).rdbuf();
  const std::string good = read.str();
  std::mt19937 random(20250107);
  int inspected = 0;
  int opened = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = good;
    for (uint32_t i = 0; i <= random() % 3; ++i) {
      // Half of the damage hits the first fields of a sector.
      const size_t sector = cold_format::kSectorBytes * (random() % 3);
      const size_t at = sector + random() % (random() % 2 == 0 ? 80 : cold_format::kSectorBytes);
      bytes[at] ^= static_cast<char>(1 << random() % 8);
    }
    std::ofstream(file_.path(), std::ios::binary) << bytes;
    const auto seen = ColdStore::Inspect(file_.path(), true);
    if (seen.ok()) {
      ++inspected;
      EXPECT_LE(seen->records + seen->damaged_descriptors, 8u);
      EXPECT_EQ(seen->damaged_records, 0u);
    }
    const auto again = ColdStore::Open(StoreOptions(), &completions_);
    if (!again.ok()) {
      EXPECT_THAT(again.status().message(), HasSubstr("not a Strata cold store"));
      continue;
    }
    ++opened;
    EXPECT_NE((*again)->note(), "");
    EXPECT_EQ(Inspect().records, 0u);
  }
  // Every outcome must occur, or the loop tests nothing.
  EXPECT_GT(inspected, kRounds / 10);
  EXPECT_LT(inspected, kRounds * 9 / 10);
  EXPECT_GT(opened, kRounds / 10);
  EXPECT_LT(opened, kRounds);
}

TEST_F(ColdStoreTest, OddPathsAreRefused) {
  options_.cold_path = ::testing::TempDir();
  EXPECT_FALSE(ColdStore::Open(StoreOptions(), &completions_).ok());
  options_.cold_path = file_.path() + "/missing/store";
  EXPECT_FALSE(ColdStore::Open(StoreOptions(), &completions_).ok());
  ASSERT_EQ(mkfifo(file_.path().c_str(), 0600), 0);
  options_.cold_path = file_.path();
  const auto pipe = ColdStore::Open(StoreOptions(), &completions_);
  EXPECT_THAT(pipe.status().message(), HasSubstr("regular file"));
}

TEST_F(ColdStoreTest, SecondServerIsRefused) {
  const auto store = Open();
  const auto second = ColdStore::Open(StoreOptions(), &completions_);
  ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("in use"));
}

TEST_F(ColdStoreTest, MoreThanTheDiskHoldsIsRefusedBeforeAnythingIsWritten) {
  const size_t disk = AvailableDisk(::testing::TempDir())->bytes;
  options_.cold_bytes = disk * 3;
  const auto store = ColdStore::Open(StoreOptions(), &completions_);
  ASSERT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(store.status().message(), HasSubstr("the disk has room for"));
  EXPECT_NE(access(file_.path().c_str(), F_OK), 0);  // nothing is left behind
}

TEST_F(ColdStoreTest, FileSizeLimitIsRefused) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 8192;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto store = ColdStore::Open(StoreOptions(), &completions_);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(store.status().message(), HasSubstr("RLIMIT_FSIZE"));
}

TEST_F(ColdStoreTest, WorksWithoutDirectIo) {
  auto given = StoreOptions();
  given.direct = false;
  auto store = ColdStore::Open(given, &completions_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->direct());
  std::byte first{};
  ASSERT_EQ(Write(store->get(), 2, 5), Result::kOk);
  EXPECT_EQ(Read(store->get(), 2, 0, &first), Result::kOk);
  EXPECT_EQ(first, std::byte{5});
}

TEST_F(ColdStoreTest, WorksOnTmpfs) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const ScratchPath shared("/dev/shm");
  options_.cold_path = shared.path();
  const auto store = Open();
  std::byte first{};
  ASSERT_EQ(Write(store.get(), 2, 5), Result::kOk);
  EXPECT_EQ(Read(store.get(), 2, 0, &first), Result::kOk);
  EXPECT_EQ(first, std::byte{5});
}

TEST_F(ColdStoreTest, TransientFaultsAreRetriedPersistentOnesReported) {
  auto plan = std::make_shared<FaultPlan>(11);
  auto given = StoreOptions();
  given.make_io = FaultyIo(plan);
  auto store = ColdStore::Open(given, &completions_);
  ASSERT_TRUE(store.ok()) << store.status();
  plan->SetWrites({.error = 1});
  EXPECT_EQ(Write(store->get(), 1, 5), Result::kIoError);
  EXPECT_EQ((*store)->write_errors(), 3u);
  EXPECT_EQ((*store)->read_errors(), 0u);
  EXPECT_EQ(Inspect().records, 0u);
  plan->SetWrites({.short_transfer = 0.3});
  plan->SetReads({.error = 0.1, .short_transfer = 0.1, .flip_read = 0.1});
  // Three attempts of each transfer: 0.3^3 of two transfers fail.
  int written = 0;
  int read = 0;
  for (int i = 0; i < 100; ++i) {
    if (Write(store->get(), 1, i) != Result::kOk) continue;
    ++written;
    std::byte first{};
    if (Read(store->get(), 1, 0, &first) != Result::kOk) continue;
    ++read;
    EXPECT_EQ(first, static_cast<std::byte>(i));
  }
  EXPECT_GT(written, 80);
  EXPECT_GT(read, 70);
}

// The persisted bytes: a change here needs a new format version.
TEST_F(ColdStoreTest, GoldenSectors) {
  cold_format::Descriptor d;
  d.epoch = 0x1122334455667788;
  d.sequence_number = 3;
  d.identity = {1, 12, 2, 32, 0xaaaa, 0xbbbb, 4096, 1};
  d.groups = 2;
  d.tokens = 64;
  d.source[0] = {3, 3};
  d.kinds[0] = {4, 4};
  d.group_crc[1] = 0xdeadbeef;
  d.reserved = 0xfeedface;
  EXPECT_EQ(cold_file::SectorCrc(&d), 3908859244u);
  EXPECT_EQ(offsetof(cold_format::Descriptor, identity), 24u);
  EXPECT_EQ(offsetof(cold_format::Descriptor, source), 72u);
  EXPECT_EQ(offsetof(cold_format::Descriptor, kinds), 1096u);
  EXPECT_EQ(offsetof(cold_format::Descriptor, group_crc), 2120u);
  EXPECT_EQ(offsetof(cold_format::Descriptor, crc), 4092u);
  cold_format::Superblock s;
  s.record_count = 8;
  s.record_bytes = 4096;
  s.epoch = 5;
  s.identity = d.identity;
  s.warm[0] = {3, 3};
  s.cold[0] = {4, 3};
  EXPECT_EQ(cold_file::SectorCrc(&s), 3486999502u);
  EXPECT_EQ(offsetof(cold_format::Superblock, epoch), 32u);
  EXPECT_EQ(offsetof(cold_format::Superblock, identity), 40u);
  EXPECT_EQ(offsetof(cold_format::Superblock, warm), 80u);
  EXPECT_EQ(offsetof(cold_format::Superblock, crc), 4092u);
}

// A child writes and erases for all it is worth until it is killed; whatever the instant, no
// published record may be partial.
TEST_F(ColdStoreTest, KilledWriterLeavesNoPartialRecord) {
  std::mt19937 random(20);
  uint64_t seen = 0;
  for (int round = 0; round < 25; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto store = Open();
      if (store == nullptr) _exit(1);
      for (int i = 0;; ++i) {
        if (i >= 8) Erase(store.get(), i % 8);
        Write(store.get(), i % 8, i);
        if (i == 8 && write(ready[1], "", 1) != 1) _exit(1);
      }
    }
    close(ready[1]);
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto left = ColdStore::Inspect(file_.path(), true);
    ASSERT_TRUE(left.ok()) << left.status();
    EXPECT_EQ(left->damaged_records, 0u);
    EXPECT_EQ(left->damaged_descriptors, 0u);
    seen += left->records;
    // The next start sees none of it.
    EXPECT_NE(Open(), nullptr);
    EXPECT_EQ(Inspect().records, 0u);
  }
  EXPECT_GE(seen, 25u * 6);  // all eight but for the one being rewritten
}

}  // namespace
}  // namespace strata
