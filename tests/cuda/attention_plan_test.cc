#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/attention_test_util.h"

namespace strata::cuda {
namespace {

// Made-up sequences: pages that no one reads, at addresses that only tell them apart.
struct FakeSequence {
  std::vector<KvPageView> views;
  std::vector<PageRun> runs;
  int32_t tokens = 0;
};

FakeSequence MakeFake(const AttentionShape& shape, TestRandom* random) {
  FakeSequence fake;
  const int32_t blocks = 1 + static_cast<int32_t>(random->Next() % 40);
  const int32_t tail = 1 + static_cast<int32_t>(random->Next() % 64);
  fake.tokens = (blocks - 1) * kBlockTokens + tail;
  static std::byte memory[1 << 12];
  for (int32_t b = 0; b < blocks; ++b) {
    const uint64_t skip =
        random->Next() % 4 == 0 ? (random->Next() % 2 == 0 ? ~uint64_t{0} : 0xff0f) : 0;
    fake.views.push_back({memory + 16 * b, memory + 2048 + 16 * b, skip});
  }
  for (int32_t b = 0; b < blocks;) {
    const int32_t pages =
        std::min<int32_t>(blocks - b, 1 + static_cast<int32_t>(random->Next() % 9));
    const bool codes = random->Next() % 2 == 0 && b + pages < blocks;
    const KvKind kind = codes ? KvKind::kI4 : KvKind::kF16;
    const KvKind read = codes && random->Next() % 2 == 0 ? KvKind::kI2 : kind;
    PageRun run{{kind, kind, shape.kv_heads, shape.head_dim},
                read,
                read,
                b,
                pages,
                pages * kBlockTokens,
                &fake.views[b]};
    if (b + pages == blocks) run.tokens -= kBlockTokens - tail;
    fake.runs.push_back(run);
    b += pages;
  }
  return fake;
}

// Tokens of [position, position + 64) that the query at `last` may see, as bits.
uint64_t Causal(int32_t position, int32_t last) {
  if (last < position) return 0;
  return last - position >= 63 ? ~uint64_t{0} : (uint64_t{1} << (last - position + 1)) - 1;
}

// Tokens that the query at `position` is to see, block by block.
std::vector<uint64_t> Wanted(const FakeSequence& fake, int32_t position) {
  std::vector<uint64_t> tokens;
  for (int32_t b = 0; b < static_cast<int32_t>(fake.views.size()); ++b) {
    tokens.push_back(Causal(64 * b, std::min(position, fake.tokens - 1)) & ~fake.views[b].skip);
  }
  return tokens;
}

// Checks the lists of a call against what was asked for: every (row, query head) in one tile, its
// work covering each token it sees once, in splits and shares that blocks alone decide.
void ExpectCovers(const AttentionShape& shape, const std::vector<FakeSequence>& fakes,
                  const std::vector<AttentionSequence>& sequences, const AttentionLists& lists) {
  const int32_t group = shape.query_heads / shape.kv_heads;
  std::map<int32_t, std::vector<const AttentionWork*>> work_of;  // by first state of a slot
  std::map<int32_t, int32_t> owner;                              // state: times written
  for (size_t w = 0; w < lists.work.size(); ++w) {
    const AttentionWork& work = lists.work[w];
    ASSERT_LE(work.queries, static_cast<int32_t>(w) < lists.decode_count ? kAttentionDecodeQueries
                                                                         : lists.prefill_queries);
    ASSERT_GE(work.split_count, 1);
    work_of[work.first_state].push_back(&work);
    for (int32_t s = 0; s < work.queries * shape.kv_heads; ++s) ++owner[work.first_state + s];
  }
  ASSERT_EQ(static_cast<int32_t>(owner.size()), lists.state_count);
  for (const auto& [state, times] : owner) ASSERT_EQ(times, 1) << state;

  std::map<int32_t, std::set<int32_t>> seen;  // by row * group + head of a KV head
  for (const AttentionTile& tile : lists.tiles) {
    const AttentionSequence* sequence = nullptr;
    const FakeSequence* fake = nullptr;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (tile.first_row >= sequences[i].first_row &&
          tile.first_row < sequences[i].first_row + sequences[i].rows) {
        sequence = &sequences[i];
        fake = &fakes[i];
      }
    }
    ASSERT_NE(sequence, nullptr);
    for (int32_t q = 0; q < tile.queries; ++q) {
      const int32_t flat = tile.first_query + q;
      const int32_t row = tile.first_row + flat / group;
      const int32_t position = sequence->first_position + row - sequence->first_row;
      std::vector<uint64_t> tokens(fake->views.size());
      int32_t section = -1;
      for (int32_t slot = 0; slot < tile.slots; ++slot) {
        const int32_t state = tile.first_state + slot * shape.kv_heads * tile.queries;
        ASSERT_EQ(work_of[state].size(), 1u);
        const AttentionWork& work = *work_of[state][0];
        ASSERT_EQ(work.first_position - sequence->first_position,
                  work.first_row - sequence->first_row);
        for (int32_t s = work.first_split; s < work.first_split + work.split_count; ++s) {
          const AttentionSplit& split = lists.splits[s];
          int32_t here = -1;
          for (int32_t share = 0; share < kAttentionShares; ++share) {
            for (int32_t i = 0; i < split.count[share]; ++i) {
              const AttentionPage& page = lists.pages[split.first_page + split.begin[share] + i];
              const int32_t block = page.position / kBlockTokens;
              ASSERT_EQ(block % kAttentionShares, share);
              ASSERT_TRUE(here == -1 || here == block / kAttentionSplitBlocks);
              here = block / kAttentionSplitBlocks;
              ASSERT_NE(page.visible, 0u);
              const uint64_t mask = page.visible & Causal(page.position, position);
              ASSERT_EQ(tokens[block] & mask, 0u);
              tokens[block] |= mask;
            }
          }
          ASSERT_GT(here, section);  // splits in order, none twice, none without pages
          section = here;
        }
      }
      ASSERT_EQ(tokens, Wanted(*fake, position)) << "row " << row;
      ASSERT_TRUE(seen[row].insert(flat % group).second);
    }
  }
  for (const AttentionSequence& sequence : sequences) {
    for (int32_t r = 0; r < sequence.rows; ++r) {
      ASSERT_EQ(static_cast<int32_t>(seen[sequence.first_row + r].size()), group);
    }
  }
}

TEST(CudaAttentionPlanTest, CoversWhatIsAskedForOnce) {
  TestRandom random(5);
  int cases = 0;
  for (int32_t dim : {64, 128, 256}) {
    for (int32_t group : {1, 3, 8, 40}) {
      for (int repeat = 0; repeat < 4; ++repeat) {
        const AttentionShape shape{2 * group, 2, dim};
        std::vector<FakeSequence> fakes;
        std::vector<AttentionSequence> sequences;
        int32_t row = 3;
        const int count = 1 + static_cast<int>(random.Next() % 4);
        for (int i = 0; i < count; ++i) fakes.push_back(MakeFake(shape, &random));
        for (const FakeSequence& fake : fakes) {
          int32_t rows = random.Next() % 2 == 0 ? 1 : 1 + static_cast<int32_t>(random.Next() % 70);
          rows = std::min(rows, fake.tokens);
          sequences.push_back({row, rows, fake.tokens - rows, absl::MakeConstSpan(fake.runs)});
          row += rows + 1;
        }
        int64_t least = 0;
        for (const AttentionSequence& s : sequences) {
          least += AttentionStatesMin(s.rows, shape.query_heads);
        }
        for (int64_t spare : {0, 100, 1000000}) {
          AttentionLists lists;
          AttentionDevice device;
          device.prefill_queries = random.Next() % 3 == 0 ? 0 : 64 << random.Next() % 2;
          device.multiprocessors = 1 + static_cast<int32_t>(random.Next() % 40);
          PlanAttention(shape, sequences, {least + spare, device}, &lists);
          ASSERT_LE(lists.state_count, least + spare);
          ExpectCovers(shape, fakes, sequences, lists);
          if (HasFatalFailure()) return;
          ++cases;
        }
      }
    }
  }
  std::printf("%d plans\n", cases);
}

TEST(CudaAttentionPlanTest, PrefillIsForManyQueriesOfOneSequence) {
  const AttentionShape shape{8, 2, 64};  // four query heads a KV head
  TestRandom random(6);
  FakeSequence few = MakeFake(shape, &random), many = MakeFake(shape, &random);
  while (few.tokens < 8) few = MakeFake(shape, &random);
  while (many.tokens < 70) many = MakeFake(shape, &random);
  const AttentionSequence sequences[] = {{0, 8, few.tokens - 8, absl::MakeConstSpan(few.runs)},
                                         {8, 70, many.tokens - 70, absl::MakeConstSpan(many.runs)}};
  const int64_t states = AttentionStatesMin(78, shape.query_heads);
  AttentionLists lists;
  PlanAttention(shape, sequences, {states, {128, 6}}, &lists);
  EXPECT_EQ(lists.decode_count, 4);  // 32 queries
  ASSERT_EQ(lists.work.size(), 4u + 3u);
  // 32 rows a tile, the last ones first.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(lists.work[4 + i].first_row, 8 + 32 * (2 - i)) << i;
  EXPECT_EQ(lists.work[4].queries, 6 * 4);
  EXPECT_EQ(LaunchOf(shape, lists).prefill_count, 3);
  EXPECT_EQ(LaunchOf(shape, lists).prefill_queries, 128);
  EXPECT_EQ(MergeOf(shape, lists).queries_max, 128);

  PlanAttention(shape, sequences, {states, {0, 6}}, &lists);
  EXPECT_EQ(lists.work.size(), 39u);
  EXPECT_EQ(lists.decode_count, 39);
  EXPECT_EQ(MergeOf(shape, lists).queries_max, 8);
}

// As wide as leaves a block for each multiprocessor: of one tile, or of one tile and split where
// states allow that.
TEST(CudaAttentionPlanTest, PrefillTilesFillTheDevice) {
  const AttentionShape shape{8, 2, 64};
  const int32_t tokens = 3 * kAttentionSplitBlocks * kBlockTokens;
  static std::byte memory[16];
  const std::vector<KvPageView> views(tokens / kBlockTokens, {memory, nullptr, 0});
  const PageRun run{{KvKind::kF16, KvKind::kF16, 2, 64},
                    KvKind::kF16,
                    KvKind::kF16,
                    0,
                    tokens / kBlockTokens,
                    tokens,
                    views.data()};
  const AttentionSequence sequence{0, 256, tokens - 256, {&run, 1}};  // 1,024 queries a KV head
  const int64_t least = AttentionStatesMin(256, shape.query_heads);
  struct Case {
    int32_t multiprocessors;
    int64_t states;
    int32_t queries;
    int32_t work;
  };
  for (const Case& c : {Case{16, least, 128, 8}, Case{16, 3 * least, 128, 8},
                        Case{17, least, 64, 16}, Case{17, 3 * least, 128, 8 * 3},
                        Case{100, least, 32, 32}, Case{96, 3 * least, 64, 16 * 3}}) {
    AttentionLists lists;
    PlanAttention(shape, {&sequence, 1}, {c.states, {128, c.multiprocessors}}, &lists);
    EXPECT_EQ(lists.prefill_queries, c.queries) << c.multiprocessors;
    EXPECT_EQ(static_cast<int32_t>(lists.work.size()), c.work) << c.multiprocessors;
  }
}

}  // namespace
}  // namespace strata::cuda
