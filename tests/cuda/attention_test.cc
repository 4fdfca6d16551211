#include "kernels/attention.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "gtest/gtest.h"
#include "tests/cuda/attention_device.h"
#include "tests/kernels/attention_expect.h"
#include "tests/kernels/attention_test_util.h"

namespace strata {
namespace {

// Against brute force in double, within the slack of tests/kernels/attention_expect.h. Its terms
// cover what this device does differently from the CPU: an F16 page's queries and weights are pairs
// of halves (2^-22, where 8 D 2^-24 and 32 x 2^-24 are allowed), and tensor cores add up to 16
// products before they round.
class CudaAttentionTest : public testing::Test {
 protected:
  // Attends and compares every row.
  void Check(const TestSequence& sequence, const Step& step, float q_scale,
             const std::string& where) {
    const std::vector<float> q =
        RandomQueries(step.rows, step.query_heads, step.head_dim, q_scale, ++seed_);
    ExpectRows(AttendRuns(&attention_, step, q, sequence.Runs()), sequence, step, q, where);
  }
  static void TearDownTestSuite() {
    std::printf("%lld attention cases\n", static_cast<long long>(LaunchedAttention::calls()));
  }

  LaunchedAttention attention_;
  uint32_t seed_ = 100;
};

// Tests named Large run in two orders only; this is for all the others and the sanitizers.
TEST_F(CudaAttentionTest, AFewOfEverything) {
  for (const auto& [dim, group] : {std::pair<int32_t, int32_t>{64, 3}, {80, 1}, {256, 2}}) {
    const TestSequence sequence(1, dim, {kI4Block, kI4AsI2Block, kI2Block, kF16Block, kF16Block}, 9,
                                2);
    Check(sequence, {group, 1, dim, 1, sequence.tokens() - 1}, 1.0f, "decode");
    Check(sequence, {group, 1, dim, 11, sequence.tokens() - 11}, 1.0f, "prefill");
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttentionTest, LargeEveryFormatAtEveryHeadDim) {
  for (int32_t dim : {16, 64, 80, 96, 112, 128, 256}) {
    for (const BlockKinds& kinds : AllBlockKinds()) {
      const TestSequence sequence(2, dim, {kinds, kF16Block}, 29, 1);
      Check(sequence, {6, 2, dim, 1, sequence.tokens() - 1}, 1.0f,
            KindName(kinds) + " head dim " + std::to_string(dim));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttentionTest, LargeAnyNumberOfQueryHeadsAKvHead) {
  for (int32_t dim : {64, 128, 256}) {
    for (int32_t group = 1; group <= 13; ++group) {
      if (dim != 64 && group % 4 != 0) continue;
      const TestSequence sequence(1, dim, {kF16Block, kI4Block, kI2Block}, 64, group);
      Check(sequence, {group, 1, dim, 1, sequence.tokens() - 1}, 2.0f,
            std::to_string(group) + " heads");
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttentionTest, LargeEveryTailOfAPartialPage) {
  for (int32_t tail = 1; tail <= 64; ++tail) {
    const TestSequence sequence(1, 64, {kF16Block}, tail, tail);
    Check(sequence, {3, 1, 64, 1, sequence.tokens() - 1}, 1.0f, "tail " + std::to_string(tail));
    if (HasFatalFailure()) return;
  }
}

// A prefill piece: its own tokens are in the runs already, each row sees its past alone, and the
// causal edge crosses pages of every format.
TEST_F(CudaAttentionTest, LargeManyRowsEachSeeTheirPastAlone) {
  for (int32_t dim : {64, 96, 128, 256}) {
    for (const BlockKinds& edge : {kF16Block, kI4Block, kI2Block}) {
      const TestSequence sequence(1, dim, {kF16Block, kI4Block, edge, kF16Block}, 9, 3);
      Check(sequence, {3, 1, dim, 27, sequence.tokens() - 27}, 1.0f, KindName(edge));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttentionTest, FromTheFirstToken) {
  const TestSequence sequence(2, 80, {kF16Block, kF16Block}, 3, 5);
  Check(sequence, {4, 2, 80, sequence.tokens(), 0}, 1.0f, "prompt");
}

TEST_F(CudaAttentionTest, LargeSkippedTokensNeverReachTheResult) {
  for (const BlockKinds& kinds : AllBlockKinds()) {
    TestSequence sequence(1, 64, {kinds, kinds, kinds, kF16Block}, 40, 7);
    sequence.SetSkip(0, 0x00000000ffffffffu);
    sequence.SetSkip(1, ~uint64_t{0});         // nothing left of it
    sequence.SetSkip(2, 0xaaaaaaaaaaaaaaaau);  // every other token
    sequence.SetSkip(3, 0x8000000000000010u);  // one of its tokens; one past its end
    Check(sequence, {3, 1, 64, 2, sequence.tokens() - 2}, 1.0f, KindName(kinds));
    if (HasFatalFailure()) return;
  }
}

// A4, to the letter: what is hidden may be infinite or not a number.
TEST_F(CudaAttentionTest, HiddenTokensMayHoldAnything) {
  const int32_t dim = 64, rows = 20;
  TestSequence sequence(1, dim, {kF16Block, kF16Block}, 50, 9);
  const Step step{2, 1, dim, rows, sequence.tokens() - rows};
  const std::vector<float> q = RandomQueries(rows, 2, dim, 1.0f, 10);
  sequence.SetSkip(0, uint64_t{1} << 13);
  const PartialStates clean = AttendRuns(&attention_, step, q, sequence.Runs());
  const PageFormat f16{KvKind::kF16, KvKind::kF16, 1, dim};
  const auto damage = [&](int32_t block, int32_t token, bool keys) {
    Half* k = reinterpret_cast<Half*>(sequence.base(block) + f16.KHead(0));
    Half* v = reinterpret_cast<Half*>(sequence.base(block) + f16.VHead(0));
    for (int32_t c = 0; c < dim; ++c) {
      if (keys) k[KF16Index(dim, token, c)] = c % 2 == 0 ? 0x7e00 : 0x7c00;
      v[VF16Index(dim, token, c)] = c % 2 == 0 ? 0x7c00 : 0x7e00;
    }
  };
  damage(0, 13, true);   // skipped
  damage(1, 45, true);   // seen by the last rows alone
  damage(1, 47, false);  // the same, with a score that is a number
  const PartialStates damaged = AttendRuns(&attention_, step, q, sequence.Runs());
  const int32_t seeing = 64 + 45 - step.first_position;
  ASSERT_GT(seeing, 0);
  ASSERT_LT(seeing, rows);
  for (int32_t r = 0; r < seeing; ++r) EXPECT_TRUE(SameRow(clean, r, damaged, r)) << r;
  for (int32_t r = seeing; r < rows; ++r) EXPECT_TRUE(std::isnan(damaged.l[r * 2])) << r;
}

TEST_F(CudaAttentionTest, NothingToSeeLeavesTheEmptyState) {
  TestSequence sequence(1, 64, {kI4Block, kF16Block}, 64, 11);
  sequence.SetSkip(0, ~uint64_t{0});
  sequence.SetSkip(1, ~uint64_t{0});
  const Step step{3, 1, 64, 3, 127};
  const std::vector<float> q = RandomQueries(3, 3, 64, 1.0f, 12);
  for (const std::vector<PageRun>& runs : {sequence.Runs(), std::vector<PageRun>()}) {
    const PartialStates states = AttendRuns(&attention_, step, q, runs);
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(states.m[i], -std::numeric_limits<float>::infinity());
      EXPECT_EQ(states.l[i], 0.0f);
    }
    for (size_t i = 0; i < 9 * 64; ++i) EXPECT_EQ(states.o[i], 0.0f);
    for (const float x : attention_.finished()) EXPECT_EQ(x, 0.0f);
  }
}

std::vector<BlockKinds> Mix() {
  return {kF16Block, kI4Block, kI4AsI2Block, kI2Block, kI2Block,  kI4Block, kF16Block,
          kI4Block,  kI2Block, kI4Block,     kI4Block, kF16Block, kF16Block};
}

// A1 and A3, at every place to cut: parts attended apart and merged, on the host or by folding into
// states that came from elsewhere (as the CPU's do), are the whole.
TEST_F(CudaAttentionTest, LargePartsMergeToTheWhole) {
  const TestSequence sequence(2, 64, Mix(), 33, 13);
  const Step step{6, 2, 64, 1, sequence.tokens() - 1};
  const std::vector<float> q = RandomQueries(1, 6, 64, 3.0f, 14);
  const KernelsUnderTest cpu = MakeKernels("scalar", 1);
  for (int32_t cut = 0; cut <= sequence.block_count(); ++cut) {
    const std::vector<PageRun> first = sequence.Runs(0, cut);
    const std::vector<PageRun> rest = sequence.Runs(cut, sequence.block_count());
    PartialStates merged = AttendRuns(&attention_, step, q, first);
    MergeStates(AttendRuns(&attention_, step, q, rest), &merged);
    ExpectRows(merged, sequence, step, q, "cut at " + std::to_string(cut));
    PartialStates folded = AttendRuns(cpu.attention.get(), step, q, first);
    const AttentionSequence more{0, step.rows, step.first_position, absl::MakeConstSpan(rest)};
    attention_.Attend({6, 2, 64}, q.data(), absl::MakeConstSpan(&more, 1), &folded);
    ExpectRows(folded, sequence, step, q, "folded at " + std::to_string(cut));
    if (HasFatalFailure()) return;
  }
}

// The merge's other form: o / l, which rounds twice less than o times 1 / l.
TEST_F(CudaAttentionTest, FinishesAsTheHostDoes) {
  const TestSequence sequence(2, 64, Mix(), 20, 15);
  const Step step{6, 2, 64, 1, sequence.tokens() - 1};
  const std::vector<float> q = RandomQueries(1, 6, 64, 1.0f, 16);
  const PartialStates states = AttendRuns(&attention_, step, q, sequence.Runs());
  std::vector<float> expected(6 * 64);
  FinishStates(states, expected.data());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(attention_.finished()[i], expected[i], std::abs(expected[i]) * 0x1p-22f);
  }
}

// One channel of K with a step 10^4 times the others', and the query's weight on it to match or
// not: nothing overflows, as in the CPU's test of the same name.
TEST_F(CudaAttentionTest, AHugeStepInOneChannel) {
  const int32_t dim = 64;
  const PageFormat f16{KvKind::kF16, KvKind::kF16, 1, dim};
  const KernelsUnderTest reference = MakeKernels("reference", 1);
  for (const BlockKinds& kinds : {kF16Block, kI4Block, kI2Block}) {
    const PageFormat format{kinds.k, kinds.v, 1, dim};
    std::vector<std::byte> source(f16.BaseBytes()), base(format.BaseBytes()),
        refine(format.RefineBytes());
    TestRandom random(15);
    Half* halves = reinterpret_cast<Half*>(source.data());
    for (size_t i = 0; i < source.size() / 2; ++i) halves[i] = FloatToHalf(random.Normal());
    for (int32_t t = 0; t < 64; ++t) {
      halves[KF16Index(dim, t, 17)] = FloatToHalf(t % 2 == 0 ? 65504.0f : -65504.0f);
    }
    ASSERT_TRUE(reference.codec->Encode(source.data(), format, base.data(), refine.data()).ok());
    const KvPageView view{base.data(), refine.empty() ? nullptr : refine.data(), 0};
    const std::vector<PageRun> runs = {{format, kinds.read_k, kinds.read_v, 0, 1, 64, &view}};
    std::vector<float> q = RandomQueries(1, 1, dim, 1.0f, 16);
    const Step step{1, 1, dim, 1, 63};
    for (float weight : {1e4f, 1.0f, 1e-4f, 0.0f}) {
      q[17] = weight;
      const PartialStates got = AttendRuns(&attention_, step, q, runs);
      const PartialStates want = AttendRuns(reference.attention.get(), step, q, runs);
      // alpha is the huge channel's |q| s / 127; a score errs by at most half of it a channel times
      // 7.5, and exactly nothing where the huge channel is at +-127.
      const float bound = kinds == kF16Block ? 0.0f : 8188.0f * weight / 127 * 0.5f * 7.5f * 8;
      EXPECT_NEAR(got.m[0], want.m[0], std::max(bound, 0.05f) + std::abs(want.m[0]) * 1e-5f)
          << KindName(kinds) << " " << weight;
      EXPECT_TRUE(std::isfinite(got.l[0]));
      for (int32_t c = 0; c < dim; ++c) {
        EXPECT_TRUE(std::isfinite(got.o[c])) << weight;
        if (weight == 0.0f) {
          EXPECT_NEAR(got.o[c] / got.l[0], want.o[c] / want.l[0], 0.05f);
        }
      }
    }
  }
}

// Thousands of tokens: several splits, several pages a warp, every format.
TEST_F(CudaAttentionTest, LargeContext) {
  std::vector<BlockKinds> blocks = {kF16Block};
  for (int i = 0; i < 30; ++i) blocks.push_back(kI2Block);
  for (int i = 0; i < 20; ++i) blocks.push_back(i % 5 == 0 ? kI4AsI2Block : kI4Block);
  for (int i = 0; i < 15; ++i) blocks.push_back(kF16Block);
  const TestSequence sequence(1, 64, blocks, 17, 27);
  Check(sequence, {8, 1, 64, 1, sequence.tokens() - 1}, 1.0f, "decode");
  Check(sequence, {4, 1, 64, 9, sequence.tokens() - 9}, 1.0f, "prefill");
  const TestSequence wide(2, 128, blocks, 64, 28);
  Check(wide, {8, 2, 128, 1, wide.tokens() - 1}, 1.0f, "head dim 128");
}

// A row's bits depend on nothing but the row and what it sees.
class CudaAttentionBitsTest : public CudaAttentionTest {};

TEST_F(CudaAttentionBitsTest, LargeNumberOfRowsDoesNotMatter) {
  for (const auto& [dim, group] : {std::pair<int32_t, int32_t>{80, 3}, {64, 5}, {256, 2}}) {
    const TestSequence sequence(1, dim, Mix(), 21, 19);
    const int32_t rows = 60;  // several row tiles, two pages of causal edge
    const Step all{group, 1, dim, rows, sequence.tokens() - rows};
    const std::vector<float> q = RandomQueries(rows, group, dim, 1.0f, 20);
    const PartialStates together = AttendRuns(&attention_, all, q, sequence.Runs());
    for (int32_t r = 0; r < rows; r += 17) {
      // Decoding this row, when the later tokens did not exist.
      const Step one{group, 1, dim, 1, all.first_position + r};
      std::vector<PageRun> runs = sequence.Runs(0, one.first_position / 64 + 1);
      runs.back().tokens = one.first_position + 1 - 64 * runs.back().first_block;
      const std::vector<float> row_q(q.begin() + r * group * dim,
                                     q.begin() + (r + 1) * group * dim);
      const PartialStates alone = AttendRuns(&attention_, one, row_q, runs);
      ASSERT_TRUE(SameRow(together, r, alone, 0)) << "row " << r << ", head dim " << dim;
    }
  }
}

TEST_F(CudaAttentionBitsTest, OtherSequencesDoNotMatter) {
  const TestSequence a(2, 64, Mix(), 5, 23), b(2, 64, {kF16Block}, 17, 24),
      c(2, 64, {kI4Block, kI2Block, kF16Block}, 60, 25);
  const std::vector<PageRun> runs[] = {a.Runs(), b.Runs(), c.Runs()};
  // Decode of one, prefill of two, in one call; states of 4 more rows that nobody asked for.
  const AttentionSequence batch[] = {{3, 1, a.tokens() - 1, absl::MakeConstSpan(runs[0])},
                                     {4, 17, 0, absl::MakeConstSpan(runs[1])},
                                     {21, 5, c.tokens() - 5, absl::MakeConstSpan(runs[2])}};
  const int32_t rows = 30;
  const std::vector<float> q = RandomQueries(rows, 6, 64, 1.0f, 26);
  PartialStates together;
  together.Reset(rows, 6, 64);
  attention_.Attend({6, 2, 64}, q.data(), absl::MakeConstSpan(batch, 3), &together);
  for (const AttentionSequence& sequence : batch) {
    const Step step{6, 2, 64, sequence.rows, sequence.first_position};
    const std::vector<float> part(q.begin() + sequence.first_row * 6 * 64, q.end());
    const std::vector<PageRun> own(sequence.runs.begin(), sequence.runs.end());
    const PartialStates alone = AttendRuns(&attention_, step, part, own);
    for (int32_t r = 0; r < sequence.rows; ++r) {
      ASSERT_TRUE(SameRow(together, sequence.first_row + r, alone, r)) << r;
    }
  }
  for (int32_t r : {0, 1, 2, 26, 27, 28, 29}) {
    for (int32_t h = 0; h < 6; ++h) EXPECT_EQ(together.l[r * 6 + h], 0.0f);
  }
}

// Splits in slots of their own, or folded where they are made, as memory allows; pages in device
// memory or in the host's.
TEST_F(CudaAttentionBitsTest, LargeMemoryDoesNotMatter) {
  std::vector<BlockKinds> blocks = Mix();
  for (int i = 0; i < 25; ++i) blocks.push_back(i % 4 == 1 ? kI4Block : kF16Block);
  TestSequence sequence(2, 64, blocks, 50, 29);
  sequence.SetSkip(8, ~uint64_t{0});
  for (int32_t rows : {1, 7}) {
    const Step step{6, 2, 64, rows, sequence.tokens() - rows};
    const std::vector<float> q = RandomQueries(rows, 6, 64, 1.0f, 30);
    const PartialStates expected = AttendRuns(&attention_, step, q, sequence.Runs());
    const int32_t most = attention_.lists().state_count;
    LaunchedAttention tight, mapped(PagePlace::kMapped);
    tight.set_spare_states(0);
    const PartialStates folded = AttendRuns(&tight, step, q, sequence.Runs());
    EXPECT_EQ(tight.lists().state_count, rows * 6);
    EXPECT_EQ(most, rows * 6 * 3);
    const PartialStates read_in_place = AttendRuns(&mapped, step, q, sequence.Runs());
    for (int32_t r = 0; r < rows; ++r) {
      ASSERT_TRUE(SameRow(folded, r, expected, r)) << r;
      ASSERT_TRUE(SameRow(read_in_place, r, expected, r)) << r;
    }
  }
}

TEST(CudaPrepareAttentionTest, RefusesHeadDimsThatPagesCannotHave) {
  for (int dim : {-16, 0, 8, 72, 257, 272}) {
    EXPECT_EQ(cuda::PrepareAttention(dim), cudaErrorInvalidValue) << dim;
  }
  EXPECT_EQ(cuda::PrepareAttention(64), cudaSuccess);
}

}  // namespace
}  // namespace strata
