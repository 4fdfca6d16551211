#include "kernels/attention.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda/attention_device.h"
#include "tests/kernels/attention_contract.h"
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
    ExpectSkippedTokensAreNotSeen(&attention_, kinds);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttentionTest, HiddenTokensMayHoldAnything) {
  ExpectHiddenTokensMayHoldAnything(&attention_);
}

TEST_F(CudaAttentionTest, NothingToSeeLeavesTheEmptyState) {
  for (const bool no_runs : {false, true}) {
    ExpectNothingSeenIsTheEmptyState(&attention_, no_runs);
    for (const float x : attention_.finished()) EXPECT_EQ(x, 0.0f);
  }
}

std::vector<BlockKinds> Mix() {
  return {kF16Block, kI4Block, kI4AsI2Block, kI2Block, kI2Block,  kI4Block, kF16Block,
          kI4Block,  kI2Block, kI4Block,     kI4Block, kF16Block, kF16Block};
}

// Folded into the CPU's states, as where both attend to one sequence.
TEST_F(CudaAttentionTest, LargePartsMergeToTheWhole) {
  const TestSequence sequence(2, 64, Mix(), 33, 13);
  const KernelsUnderTest cpu = MakeKernels("scalar", 1);
  ExpectPartsMergeToTheWhole(&attention_, cpu.attention.get(), sequence,
                             {6, 2, 64, 1, sequence.tokens() - 1});
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

TEST_F(CudaAttentionTest, AHugeStepInOneChannel) {
  for (const BlockKinds& kinds : {kF16Block, kI4Block, kI2Block}) {
    ExpectAHugeStepInOneChannelIsServed(&attention_, kinds);
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
class CudaAttentionBitsTest : public CudaAttentionTest {
 protected:
  bool UsedPrefill() const {
    return static_cast<size_t>(attention_.lists().decode_count) < attention_.lists().work.size();
  }

  // Attends to `step`, which is prefill's, and decodes each of its rows for which `wanted` holds
  // when the later tokens did not exist: the same bits.
  template <class Wanted>
  void CheckAgainstDecoding(const TestSequence& sequence, const Step& step, const Wanted& wanted,
                            const std::string& where) {
    const size_t row_floats = size_t{1} * step.query_heads * step.head_dim;
    const std::vector<float> q =
        RandomQueries(step.rows, step.query_heads, step.head_dim, 1.0f, ++seed_);
    attention_.set_multiprocessors(1);
    const PartialStates together = AttendRuns(&attention_, step, q, sequence.Runs());
    ASSERT_TRUE(UsedPrefill()) << where;
    for (int32_t r = 0; r < step.rows; ++r) {
      if (!wanted(r)) continue;
      Step one = step;
      one.rows = 1;
      one.first_position += r;
      std::vector<PageRun> runs = sequence.Runs(0, one.first_position / 64 + 1);
      runs.back().tokens = one.first_position + 1 - 64 * runs.back().first_block;
      const std::vector<float> row_q(q.begin() + r * row_floats, q.begin() + (r + 1) * row_floats);
      const PartialStates alone = AttendRuns(&attention_, one, row_q, runs);
      ASSERT_FALSE(UsedPrefill()) << where;
      ASSERT_TRUE(SameRow(together, r, alone, 0)) << where << ", row " << r;
    }
  }
};

TEST_F(CudaAttentionBitsTest, PrefillIsDecoding) {
  TestSequence sequence(2, 64, {kI4Block, kF16Block, kI2Block, kI4AsI2Block, kF16Block, kF16Block},
                        9, 41);
  sequence.SetSkip(1, 0x00ffff00ff000001u);
  const Step step{6, 2, 64, 15, sequence.tokens() - 15};
  CheckAgainstDecoding(
      sequence, step, [](int32_t r) { return r % 5 == 0 || r == 14; }, "");
}

// Every format, K and V apart, at every head dim and number of heads; tiles that end within a row's
// heads and blocks of which some warps have nothing to do; several splits; skipped tokens and whole
// pages; a piece whose causal edge crosses pages of F16 and of codes.
TEST_F(CudaAttentionBitsTest, LargePrefillIsDecodingWhateverTheShape) {
  int32_t group = 0;
  for (int32_t dim : {16, 32, 64, 80, 96, 112, 128, 144, 208, 256}) {
    group = group % 8 + 1;
    const int32_t rows = 150 / group;
    std::vector<BlockKinds> blocks = AllBlockKinds();
    blocks.push_back(kF16Block);
    blocks.push_back(dim % 32 == 0 ? kI4Block : kI2Block);
    blocks.push_back(kF16Block);
    TestSequence sequence(1, dim, blocks, 1 + dim % 64, 43 + dim);
    sequence.SetSkip(2, 0x0000ffff00000000u);
    sequence.SetSkip(3, ~uint64_t{0});
    sequence.SetSkip(sequence.block_count() - 2, 0xaaaaaaaaaaaaaaaau);
    CheckAgainstDecoding(
        sequence, {group, 1, dim, rows, sequence.tokens() - rows},
        [&](int32_t r) { return r % 13 == 0 || r + 1 == rows; },
        "head dim " + std::to_string(dim) + ", " + std::to_string(group) + " heads");
    if (HasFatalFailure()) return;
  }
}

// The first tokens of a prompt: nothing before them, and tiles of which half is beyond their rows.
TEST_F(CudaAttentionBitsTest, LargePrefillOfAPromptIsDecoding) {
  const TestSequence sequence(1, 128, {kF16Block, kF16Block, kF16Block}, 7, 47);
  CheckAgainstDecoding(
      sequence, {3, 1, 128, sequence.tokens(), 0},
      [](int32_t r) { return r % 9 == 0 || r % 64 == 63; }, "");
}

// As on devices with less shared memory: blocks of four warps, or decode tiles for all.
TEST_F(CudaAttentionBitsTest, LargeWarpsOfABlockDoNotMatter) {
  for (const auto& [dim, queries] : {std::pair<int32_t, int32_t>{64, 64}, {96, 64}, {256, 32}}) {
    const TestSequence sequence(1, dim, {kI4Block, kF16Block, kI2Block, kF16Block, kF16Block}, 30,
                                59);
    const Step step{4, 1, dim, 40, sequence.tokens() - 40};
    const std::vector<float> q = RandomQueries(step.rows, 4, dim, 1.0f, 60);
    attention_.set_multiprocessors(1);
    const PartialStates expected = AttendRuns(&attention_, step, q, sequence.Runs());
    ASSERT_EQ(attention_.lists().prefill_queries, 2 * queries);
    for (const int32_t max : {queries, 32, 0}) {
      LaunchedAttention small;
      small.set_multiprocessors(1);
      small.set_prefill_queries_max(max);
      const PartialStates states = AttendRuns(&small, step, q, sequence.Runs());
      ASSERT_EQ(small.lists().prefill_queries, max);
      for (int32_t r = 0; r < step.rows; ++r) ASSERT_TRUE(SameRow(states, r, expected, r)) << r;
    }
  }
}

TEST_F(CudaAttentionBitsTest, LargeNumberOfRowsDoesNotMatter) {
  for (const auto& [dim, group] : {std::pair<int32_t, int32_t>{80, 3}, {64, 5}, {256, 2}}) {
    const TestSequence sequence(1, dim, Mix(), 21, 19);
    const int32_t rows = 60;  // several row tiles, two pages of causal edge
    ExpectRowsHaveTheBitsOfDecoding(&attention_, sequence,
                                    {group, 1, dim, rows, sequence.tokens() - rows}, 17);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttentionBitsTest, OtherSequencesDoNotMatter) {
  ExpectSequencesHaveTheBitsOfBeingAlone(&attention_, Mix(), 5);
}

// Splits in slots of their own, or folded where they are made, as memory allows; pages in device
// memory or in the host's.
TEST_F(CudaAttentionBitsTest, LargeMemoryDoesNotMatter) {
  std::vector<BlockKinds> blocks = Mix();
  for (int i = 0; i < 25; ++i) blocks.push_back(i % 4 == 1 ? kI4Block : kF16Block);
  TestSequence sequence(2, 64, blocks, 50, 29);
  sequence.SetSkip(8, ~uint64_t{0});
  for (int32_t rows : {1, 7, 25}) {
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
  cuda::AttentionDevice device;
  for (int dim : {-16, 0, 8, 72, 257, 272}) {
    EXPECT_EQ(cuda::PrepareAttention(dim, &device), cudaErrorInvalidValue) << dim;
  }
  EXPECT_EQ(cuda::PrepareAttention(64, &device), cudaSuccess);
  EXPECT_GE(device.multiprocessors, 1);
}

}  // namespace
}  // namespace strata
