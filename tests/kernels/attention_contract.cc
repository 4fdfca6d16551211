#include "tests/kernels/attention_contract.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/half.h"
#include "gtest/gtest.h"
#include "tests/kernels/attention_test_util.h"

namespace strata {

void ExpectSkippedTokensAreNotSeen(AttentionBackend* attention, const BlockKinds& kinds) {
  TestSequence sequence(1, 64, {kinds, kinds, kinds, kF16Block}, 40, 7);
  sequence.SetSkip(0, 0x00000000ffffffffu);
  sequence.SetSkip(1, ~uint64_t{0});         // nothing left of it
  sequence.SetSkip(2, 0xaaaaaaaaaaaaaaaau);  // every other token
  sequence.SetSkip(3, 0x8000000000000010u);  // one of its tokens; one past its end
  const Step step{3, 1, 64, 2, sequence.tokens() - 2};
  const std::vector<float> q = RandomQueries(2, 3, 64, 1.0f, 8);
  ExpectRows(AttendRuns(attention, step, q, sequence.Runs()), sequence, step, q, KindName(kinds));
}

void ExpectHiddenTokensMayHoldAnything(AttentionBackend* attention) {
  const int32_t dim = 64, rows = 20;
  TestSequence sequence(1, dim, {kF16Block, kF16Block}, 50, 9);
  const Step step{2, 1, dim, rows, sequence.tokens() - rows};
  const std::vector<float> q = RandomQueries(rows, 2, dim, 1.0f, 10);
  sequence.SetSkip(0, uint64_t{1} << 13);
  const PartialStates clean = AttendRuns(attention, step, q, sequence.Runs());
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
  const PartialStates damaged = AttendRuns(attention, step, q, sequence.Runs());
  const int32_t seeing = 64 + 45 - step.first_position;
  ASSERT_GT(seeing, 0);
  ASSERT_LT(seeing, rows);
  for (int32_t r = 0; r < seeing; ++r) EXPECT_TRUE(SameRow(clean, r, damaged, r)) << r;
  for (int32_t r = seeing; r < rows; ++r) {
    EXPECT_TRUE(std::isnan(damaged.o[r * 2 * dim] / damaged.l[r * 2])) << r;
  }
}

void ExpectNothingSeenIsTheEmptyState(AttentionBackend* attention, bool no_runs) {
  TestSequence sequence(1, 64, {kI4Block, kF16Block}, 64, 11);
  sequence.SetSkip(0, ~uint64_t{0});
  sequence.SetSkip(1, ~uint64_t{0});
  const Step step{3, 1, 64, 3, 127};
  const std::vector<float> q = RandomQueries(3, 3, 64, 1.0f, 12);
  const PartialStates states =
      AttendRuns(attention, step, q, no_runs ? std::vector<PageRun>() : sequence.Runs());
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(states.m[i], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(states.l[i], 0.0f);
  }
  for (size_t i = 0; i < 9 * 64; ++i) EXPECT_EQ(states.o[i], 0.0f);
}

void ExpectPartsMergeToTheWhole(AttentionBackend* attention, AttentionBackend* first,
                                const TestSequence& sequence, const Step& step) {
  const std::vector<float> q = RandomQueries(step.rows, step.query_heads, step.head_dim, 3.0f, 14);
  for (int32_t cut = 0; cut <= sequence.block_count(); ++cut) {
    const std::vector<PageRun> start = sequence.Runs(0, cut);
    const std::vector<PageRun> rest = sequence.Runs(cut, sequence.block_count());
    PartialStates merged = AttendRuns(attention, step, q, start);
    MergeStates(AttendRuns(attention, step, q, rest), &merged);
    ExpectRows(merged, sequence, step, q, "cut at " + std::to_string(cut));
    PartialStates folded = AttendRuns(first, step, q, start);
    const AttentionSequence more{0, step.rows, step.first_position, absl::MakeConstSpan(rest)};
    attention->Attend({step.query_heads, step.kv_heads, step.head_dim}, q.data(),
                      absl::MakeConstSpan(&more, 1), &folded);
    ExpectRows(folded, sequence, step, q, "folded at " + std::to_string(cut));
    if (testing::Test::HasFatalFailure()) return;
  }
}

void ExpectAHugeStepInOneChannelIsServed(AttentionBackend* attention, const BlockKinds& kinds) {
  const int32_t dim = 64;
  const PageFormat f16{KvKind::kF16, KvKind::kF16, 1, dim};
  const PageFormat format{kinds.k, kinds.v, 1, dim};
  std::vector<std::byte> source(f16.BaseBytes()), base(format.BaseBytes()),
      refine(format.RefineBytes());
  TestRandom random(15);
  Half* halves = reinterpret_cast<Half*>(source.data());
  for (size_t i = 0; i < source.size() / 2; ++i) halves[i] = FloatToHalf(random.Normal());
  for (int32_t t = 0; t < 64; ++t) {
    halves[KF16Index(dim, t, 17)] = FloatToHalf(t % 2 == 0 ? 65504.0f : -65504.0f);
  }
  const KernelsUnderTest reference = MakeKernels("reference", 1);
  ASSERT_TRUE(reference.codec->Encode(source.data(), format, base.data(), refine.data()).ok());
  const KvPageView view{base.data(), refine.empty() ? nullptr : refine.data(), 0};
  const std::vector<PageRun> runs = {{format, kinds.read_k, kinds.read_v, 0, 1, 64, &view}};
  std::vector<float> q = RandomQueries(1, 1, dim, 1.0f, 16);
  const Step step{1, 1, dim, 1, 63};
  for (float weight : {1e4f, 1.0f, 1e-4f, 0.0f}) {
    q[17] = weight;
    const PartialStates got = AttendRuns(attention, step, q, runs);
    const PartialStates want = AttendRuns(reference.attention.get(), step, q, runs);
    // alpha is the huge channel's |q| s / 127; a score errs by at most half of it a channel times
    // 7.5 (and exactly nothing where the huge channel is at +-127). With weight 1 two tokens'
    // scores differ by 10^5: any error below leaves the same one-hot choice between the halves.
    const float bound = kinds == kF16Block ? 0.0f : 8188.0f * weight / 127 * 0.5f * 7.5f * 8;
    EXPECT_NEAR(got.m[0], want.m[0], std::max(bound, 0.05f) + std::abs(want.m[0]) * 1e-5f)
        << KindName(kinds) << " " << weight;
    EXPECT_TRUE(std::isfinite(got.m[0]) && std::isfinite(got.l[0])) << weight;
    for (int32_t c = 0; c < dim; ++c) {
      EXPECT_TRUE(std::isfinite(got.o[c])) << weight;
      if (weight == 0.0f) {
        EXPECT_NEAR(got.o[c] / got.l[0], want.o[c] / want.l[0], 0.05f);
      }
    }
  }
}

void ExpectRowsHaveTheBitsOfDecoding(AttentionBackend* attention, const TestSequence& sequence,
                                     const Step& step, int32_t stride) {
  const int32_t row_values = step.query_heads * step.head_dim;
  const std::vector<float> q = RandomQueries(step.rows, step.query_heads, step.head_dim, 1.0f, 20);
  const PartialStates together = AttendRuns(attention, step, q, sequence.Runs());
  for (int32_t r = 0; r < step.rows; r += stride) {
    Step one = step;
    one.rows = 1;
    one.first_position = step.first_position + r;
    std::vector<PageRun> runs = sequence.Runs(0, one.first_position / 64 + 1);
    runs.back().tokens = one.first_position + 1 - 64 * runs.back().first_block;
    const std::vector<float> row_q(q.begin() + r * row_values, q.begin() + (r + 1) * row_values);
    const PartialStates alone = AttendRuns(attention, one, row_q, runs);
    ASSERT_TRUE(SameRow(together, r, alone, 0))
        << "row " << r << ", heads " << step.query_heads << ", head dim " << step.head_dim;
  }
}

void ExpectSequencesHaveTheBitsOfBeingAlone(AttentionBackend* attention,
                                            const std::vector<BlockKinds>& blocks,
                                            int32_t prefill_rows) {
  const TestSequence a(2, 64, blocks, 5, 23), b(2, 64, {kF16Block}, 17, 24),
      c(2, 64, {kI4Block, kI2Block, kF16Block}, 60, 25);
  const std::vector<PageRun> runs[] = {a.Runs(), b.Runs(), c.Runs()};
  // Decode of one, prefill of two; three rows before them and four after belong to nobody.
  const AttentionSequence batch[] = {
      {3, 1, a.tokens() - 1, absl::MakeConstSpan(runs[0])},
      {4, 17, 0, absl::MakeConstSpan(runs[1])},
      {21, prefill_rows, c.tokens() - prefill_rows, absl::MakeConstSpan(runs[2])}};
  const int32_t rows = 21 + prefill_rows + 4;
  const std::vector<float> q = RandomQueries(rows, 6, 64, 1.0f, 26);
  PartialStates together;
  together.Reset(rows, 6, 64);
  attention->Attend({6, 2, 64}, q.data(), absl::MakeConstSpan(batch, 3), &together);
  for (const AttentionSequence& sequence : batch) {
    const Step step{6, 2, 64, sequence.rows, sequence.first_position};
    const std::vector<float> part(q.begin() + sequence.first_row * 6 * 64, q.end());
    const std::vector<PageRun> own(sequence.runs.begin(), sequence.runs.end());
    const PartialStates alone = AttendRuns(attention, step, part, own);
    for (int32_t r = 0; r < sequence.rows; ++r) {
      ASSERT_TRUE(SameRow(together, sequence.first_row + r, alone, r)) << r;
    }
  }
  for (int32_t r : {0, 1, 2, rows - 4, rows - 3, rows - 2, rows - 1}) {
    for (int32_t h = 0; h < 6; ++h) EXPECT_EQ(together.l[r * 6 + h], 0.0f);
  }
}

}  // namespace strata
