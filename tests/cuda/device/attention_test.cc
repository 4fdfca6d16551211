// Attention over hot pages in device memory and coded ones in pinned memory, by kernels alone and
// shared with the CPU.

#include <cstring>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/cuda/executor/control.h"
#include "tests/kernels/attention_test_util.h"

namespace strata {
namespace {

using testing::FloatNear;
using testing::Pointwise;

constexpr int32_t kDim = 64;
constexpr int32_t kKvHeads = 2;
constexpr AttentionShape kShape = {6, kKvHeads, kDim};
constexpr BlockKinds kHot;
constexpr BlockKinds kWarm = {KvKind::kI4, KvKind::kI4, KvKind::kI4, KvKind::kI4};
constexpr BlockKinds kCold = {KvKind::kI2, KvKind::kI2, KvKind::kI2, KvKind::kI2};

// Unit-normal V: rounding p to 7 and q to 8 bits costs some thousandths of its deviation, and
// twice (each side against the exact oracle) is the distance allowed here. A page that is missed or
// read twice is off by tenths.
constexpr float kBound = 0.03f;

// A sequence whose F16 blocks were copied to device memory and whose others to pinned memory.
class PlacedSequence {
 public:
  PlacedSequence(const std::vector<BlockKinds>& blocks, int32_t tail, uint32_t seed,
                 DeviceMemory* memory)
      : sequence_(kKvHeads, kDim, blocks, tail, seed), runs_(sequence_.Runs()) {
    for (const PageRun& run : runs_) pages_ += run.page_count;
    views_.reserve(pages_);
    for (PageRun& run : runs_) {
      run.on_host = !(run.stored.k == KvKind::kF16);
      const KvPageView* first = views_.data() + views_.size();
      for (int32_t i = 0; i < run.page_count; ++i) {
        const std::byte* base = Place(run.pages[i].base, run.stored.BaseBytes(), run, memory);
        const std::byte* refine =
            run.stored.RefineBytes() == 0
                ? nullptr
                : Place(run.pages[i].refine, run.stored.RefineBytes(), run, memory);
        views_.push_back({base, refine, 0});
      }
      run.pages = first;
    }
  }

  int32_t tokens() const { return sequence_.tokens(); }
  std::vector<PageRun> exact_runs() const { return sequence_.Runs(); }
  const std::vector<PageRun>& runs() const { return runs_; }

 private:
  const std::byte* Place(const std::byte* bytes, size_t count, const PageRun& run,
                         DeviceMemory* memory) {
    buffers_.push_back(run.on_host ? *memory->AllocatePinned(count)
                                   : *memory->AllocateDevice(count));
    if (run.on_host) {
      std::memcpy(buffers_.back().data(), bytes, count);
    } else {
      EXPECT_TRUE(memory->Upload(bytes, count, buffers_.back().data()).ok());
    }
    return buffers_.back().data();
  }

  TestSequence sequence_;
  std::vector<PageRun> runs_;
  int32_t pages_ = 0;
  std::vector<KvPageView> views_;
  std::vector<Buffer> buffers_;
};

// Who attends to pinned pages, and how much memory there is to gather them.
struct Variant {
  const char* name;
  WarmAttention warm;
  size_t gather_bytes;
};

class CudaAttentionTest : public ::testing::TestWithParam<Variant> {
 protected:
  CudaAttentionTest() {
    STRATA_CHECK(executor::SetStreams("lazy:5"));
    auto backend = CreateCudaBackend({.device = 0,
                                      .warm_attention = GetParam().warm,
                                      .gather_bytes = GetParam().gather_bytes,
                                      .cpu = {.threads = 1, .force_isa = ""}});
    STRATA_CHECK(backend.ok());
    backend_ = *std::move(backend);
    STRATA_CHECK(backend_.attention->Reserve(kShape, 8).ok());
  }
  ~CudaAttentionTest() override { executor::SetStreams("eager"); }

  // Sequences in row order; AttendAll on the device and by the reference.
  void ExpectAll(const std::vector<const PlacedSequence*>& placed,
                 const std::vector<int32_t>& rows);

  Backend backend_;
  const Backend reference_ = CreateReferenceBackend();
};

INSTANTIATE_TEST_SUITE_P(All, CudaAttentionTest,
                         testing::Values(Variant{"InPlace", WarmAttention::kDevice, 0},
                                         Variant{"Gathered", WarmAttention::kDevice, 1 << 20},
                                         // Room for a page or two of I4.
                                         Variant{"GatheredInPart", WarmAttention::kDevice, 40000},
                                         Variant{"Host", WarmAttention::kHost, 1 << 20}),
                         [](const auto& param) { return param.param.name; });

void CudaAttentionTest::ExpectAll(const std::vector<const PlacedSequence*>& placed,
                                  const std::vector<int32_t>& rows) {
  int32_t total = 0;
  std::vector<AttentionSequence> sequences;
  std::vector<AttentionSequence> exact;
  std::vector<std::vector<PageRun>> exact_runs;
  exact_runs.reserve(placed.size());
  for (size_t i = 0; i < placed.size(); ++i) {
    const int32_t first = placed[i]->tokens() - rows[i];
    sequences.push_back({total, rows[i], first, placed[i]->runs()});
    exact_runs.push_back(placed[i]->exact_runs());
    exact.push_back({total, rows[i], first, exact_runs.back()});
    total += rows[i];
  }
  const std::vector<float> q = RandomQueries(total, kShape.query_heads, kDim, 1.0f, total);
  const size_t bytes = q.size() * sizeof(float);
  const Buffer device = *backend_.memory->AllocateDevice(2 * bytes);
  auto* device_q = reinterpret_cast<float*>(const_cast<std::byte*>(device.data()));
  ASSERT_TRUE(backend_.memory->Upload(q.data(), bytes, device_q).ok());
  backend_.attention->AttendAll(kShape, total, device_q, sequences, device_q + q.size());
  for (AttentionSequence& sequence : sequences) sequence.runs = {};  // the call took what it needs
  std::vector<float> out(q.size());
  const absl::Status status = backend_.memory->Download(device_q + q.size(), bytes, out.data());
  ASSERT_TRUE(status.ok()) << status;
  std::vector<float> expected(q.size());
  reference_.attention->AttendAll(kShape, total, q.data(), exact, expected.data());
  EXPECT_THAT(out, Pointwise(FloatNear(kBound), expected));
}

TEST_P(CudaAttentionTest, ADecodeStepOverAllTiers) {
  const PlacedSequence long_one({kHot, kCold, kCold, kWarm, kWarm, kHot, kHot}, 17, 1,
                                backend_.memory.get());
  const PlacedSequence hot_only({kHot, kHot}, 64, 2, backend_.memory.get());
  ExpectAll({&long_one, &hot_only}, {1, 1});
  ExpectAll({&hot_only}, {1});
}

TEST_P(CudaAttentionTest, APrefillPieceBesideADecode) {
  const PlacedSequence prefill({kHot, kWarm, kHot}, 20, 3, backend_.memory.get());
  const PlacedSequence decode({kCold, kHot}, 1, 4, backend_.memory.get());
  ExpectAll({&prefill, &decode}, {6, 1});
}

// What is known of the choice, and that a given one was not measured.
TEST_P(CudaAttentionTest, SaysWhoAttends) {
  const auto facts = backend_.attention->warm_attention();
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->on_host, GetParam().warm == WarmAttention::kHost);
  EXPECT_EQ(facts->gather_bytes, facts->on_host ? 0 : GetParam().gather_bytes);
  EXPECT_EQ(facts->host_tokens_per_s, 0);
}

TEST(CudaWarmAttentionTest, AutoMeasuresBothAndTakesTheFaster) {
  const auto backend = CreateCudaBackend({.device = 0,
                                          .warm_attention = WarmAttention::kAuto,
                                          .gather_bytes = 4096,
                                          .cpu = {.threads = 1, .force_isa = ""}});
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_FALSE(backend->attention->warm_attention().has_value());
  ASSERT_TRUE(backend->attention->Reserve({1, 1, 64}, 1).ok());
  const auto facts = backend->attention->warm_attention();
  ASSERT_TRUE(facts.has_value());
  EXPECT_GT(facts->device_tokens_per_s, 0);
  EXPECT_GT(facts->host_tokens_per_s, 0);
  EXPECT_EQ(facts->on_host, facts->host_tokens_per_s > facts->device_tokens_per_s);
}

TEST_P(CudaAttentionTest, FoldsIntoStatesOnTheHost) {
  const PlacedSequence sequence({kHot, kWarm, kHot}, 30, 5, backend_.memory.get());
  const std::vector<float> q = RandomQueries(1, kShape.query_heads, kDim, 1.0f, 6);
  const size_t bytes = q.size() * sizeof(float);
  Buffer device = *backend_.memory->AllocateDevice(bytes);
  ASSERT_TRUE(backend_.memory->Upload(q.data(), bytes, device.data()).ok());
  const auto* device_q = reinterpret_cast<const float*>(device.data());
  // All at once, and run by run into the same states (A3).
  PartialStates once, folded;
  once.Reset(1, kShape.query_heads, kDim);
  folded.Reset(1, kShape.query_heads, kDim);
  AttentionSequence part = {0, 1, sequence.tokens() - 1, sequence.runs()};
  backend_.attention->Attend(kShape, device_q, {&part, 1}, &once);
  for (const PageRun& run : sequence.runs()) {
    part.runs = {&run, 1};
    backend_.attention->Attend(kShape, device_q, {&part, 1}, &folded);
  }
  ASSERT_TRUE(backend_.memory->Synchronize().ok());
  std::vector<float> a(q.size()), b(q.size()), expected(q.size());
  FinishStates(once, a.data());
  FinishStates(folded, b.data());
  EXPECT_THAT(b, Pointwise(FloatNear(1e-5f), a));
  const std::vector<PageRun> exact = sequence.exact_runs();
  part.runs = exact;
  reference_.attention->AttendAll(kShape, 1, q.data(), {&part, 1}, expected.data());
  EXPECT_THAT(a, Pointwise(FloatNear(kBound), expected));
}

}  // namespace
}  // namespace strata
