#include "tests/tiering/cache_driver.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "tiering/cold_format.h"

namespace strata {
namespace {

// Bookkeeping that the budgets pay beside the bytes of a slot, generously.
constexpr size_t kSlack = 512;

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Half Value(const CacheDriver::Sequence& sequence, int32_t layer, int32_t position, bool is_v,
           int32_t channel) {
  if (layer == 3 && channel == 5 && sequence.poisoned.contains(position / kBlockTokens)) {
    return 0x7e00;  // NaN
  }
  const uint64_t where = (uint64_t{static_cast<uint32_t>(position)} << 32) |
                         (static_cast<uint64_t>(layer) << 16) |
                         (static_cast<uint64_t>(channel) << 1) | (is_v ? 1 : 0);
  const uint64_t random = Mix(sequence.content * 0x100000001b3ull ^ Mix(where));
  return FloatToHalf(static_cast<float>(static_cast<int64_t>(random % 4001) - 2000) / 1000.0f);
}

}  // namespace

TierOptions SmallOptions(const SmallBudget& budget) {
  TierOptions options;
  options.geometry = budget.geometry;
  options.formats = TierFormats::Uniform(budget.geometry.layers, {KvKind::kI4, KvKind::kI4},
                                         {KvKind::kI2, KvKind::kI2});
  options.formats.KeepK(2, {});
  options.piece_tokens = 128;
  options.max_sequences = 8;
  options.max_context = 64 * 64;
  options.model_fingerprint = 0x1234;
  options.basis_hash = 0x5678;
  options.cold_unit_bytes = 4096;
  const auto bytes = TieredCache::BlockBytes(options);
  options.hot_bytes = budget.hot_blocks * (bytes[0] + kSlack);
  options.warm_bytes = budget.warm_blocks * (bytes[1] + kSlack);
  if (budget.cold_blocks == 0) return options;
  options.cold_path = budget.cold_path;
  options.cold_bytes = cold_format::FileBytes(budget.cold_blocks, bytes[2]);
  const TierPlan plan = TierPlan::Make(options);
  options.staging_bytes = 4 * (bytes[2] + cold_format::kSectorBytes) + budget.cold_blocks * kSlack +
                          budget.staging_units * (plan.record.largest_group_bytes() + 256);
  return options;
}

ScratchPath::ScratchPath(const std::string& directory) {
  static std::atomic<int> count{0};
  const std::string base = directory.empty() ? ::testing::TempDir() : directory + "/";
  path_ = absl::StrCat(base, "strata_cold_", getpid(), "_", count.fetch_add(1));
}

ScratchPath::~ScratchPath() { unlink(path_.c_str()); }

absl::StatusOr<CacheDriver::Sequence> CacheDriver::Admit(uint64_t content, int32_t max_tokens,
                                                         const PositionalPolicy& policy) {
  STRATA_ASSIGN_OR_RETURN(const SequenceHandle handle, cache_.Admit(max_tokens, policy));
  return Sequence{handle, content, policy, max_tokens, 0, {}};
}

void CacheDriver::Reset(Sequence* sequence) {
  cache_.Reset(sequence->handle);
  sequence->tokens = 0;
}

int32_t CacheDriver::PieceLeft(const Sequence& sequence) const {
  const int32_t piece = cache_.options().piece_tokens;
  return std::min(piece - sequence.tokens % piece, sequence.max_tokens - sequence.tokens);
}

absl::Status CacheDriver::Step(const std::vector<Turn>& turns, bool abandon) {
  std::vector<StepSlice> slices;
  for (const Turn& turn : turns) {
    slices.push_back({turn.sequence->handle, turn.sequence->tokens, turn.tokens});
  }
  STRATA_ASSIGN_OR_RETURN(KvStep * step, cache_.PrepareStep(slices));
  const int32_t layers = cache_.options().geometry.layers;
  for (int32_t layer = 0; layer < (abandon ? layers / 2 : layers); ++layer) {
    const absl::StatusOr<LayerKv> kv = step->BeginLayer(layer);
    if (!kv.ok()) {
      cache_.FinishStep(false);
      return kv.status();
    }
    EXPECT_EQ(kv->sequences.size(), turns.size());
    size_t row = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
      const Sequence& sequence = *turns[i].sequence;
      EXPECT_EQ(kv->sequences[i].first_row, static_cast<int32_t>(row));
      EXPECT_EQ(kv->sequences[i].rows, turns[i].tokens);
      EXPECT_EQ(kv->sequences[i].first_position, sequence.tokens);
      for (int32_t t = 0; t < turns[i].tokens; ++t, ++row) {
        Append(sequence, layer, sequence.tokens + t, kv->targets[row]);
      }
      Compare(sequence, turns[i].tokens, layer, kv->sequences[i]);
    }
    EXPECT_EQ(row, kv->targets.size());
  }
  cache_.FinishStep(!abandon);
  if (abandon) return absl::OkStatus();
  for (const Turn& turn : turns) turn.sequence->tokens += turn.tokens;
  return absl::OkStatus();
}

absl::Status CacheDriver::Grow(Sequence* sequence, int32_t tokens) {
  while (sequence->tokens < tokens) {
    const int32_t count = std::min(PieceLeft(*sequence), tokens - sequence->tokens);
    STRATA_RETURN_IF_ERROR(Step({{sequence, count}}));
  }
  return absl::OkStatus();
}

void CacheDriver::Append(const Sequence& sequence, int32_t layer, int32_t position,
                         const AppendTarget& target) {
  const KvGeometry& g = cache_.options().geometry;
  const PageFormat f16{KvKind::kF16, KvKind::kF16, g.kv_heads, g.head_dim};
  ASSERT_EQ(target.token, position % kBlockTokens);
  for (int32_t head = 0; head < g.kv_heads; ++head) {
    auto* k = reinterpret_cast<Half*>(target.page + f16.KHead(head));
    auto* v = reinterpret_cast<Half*>(target.page + f16.VHead(head));
    for (int32_t c = 0; c < g.head_dim; ++c) {
      const int32_t channel = head * g.head_dim + c;
      k[KF16Index(g.head_dim, target.token, c)] = Value(sequence, layer, position, false, channel);
      v[VF16Index(g.head_dim, target.token, c)] = Value(sequence, layer, position, true, channel);
    }
  }
}

// The block's page as the codec stores it, BASE then REFINE.
const std::vector<std::byte>& CacheDriver::Expected(const Sequence& sequence, int32_t layer,
                                                    int32_t block, const PageFormat& stored) {
  std::vector<std::byte>& page = expected_[{sequence.content, layer, block, stored.k, stored.v}];
  if (!page.empty()) return page;
  const PageFormat f16{KvKind::kF16, KvKind::kF16, stored.kv_heads, stored.head_dim};
  std::vector<std::byte> exact(f16.Bytes());
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    Append(sequence, layer, block * kBlockTokens + t, {exact.data(), t});
  }
  if (stored == f16) {
    page = std::move(exact);
    return page;
  }
  // As the cache does it: encoded in the warm format, then planes dropped.
  const TensorKinds& kinds = cache_.options().formats.warm[layer];
  const PageFormat warm{kinds.k, kinds.v, stored.kv_heads, stored.head_dim};
  std::vector<std::byte> encoded(warm.Bytes());
  std::byte* refine = encoded.data() + warm.BaseBytes();
  EXPECT_TRUE(codec_.Encode(exact.data(), warm, encoded.data(), refine).ok());
  page.resize(stored.Bytes());
  PageCodec::DropPlanes(warm, encoded.data(), refine, stored, page.data(),
                        page.data() + stored.BaseBytes());
  return page;
}

void CacheDriver::Forget(uint64_t content) {
  std::erase_if(expected_, [&](const auto& entry) { return std::get<0>(entry.first) == content; });
}

void CacheDriver::Compare(const Sequence& sequence, int32_t tokens, int32_t layer,
                          const AttentionSequence& given) {
  int32_t block = 0;
  int32_t covered = 0;
  for (const PageRun& run : given.runs) {
    EXPECT_EQ(run.first_block, block);
    int32_t run_tokens = 0;
    for (int32_t i = 0; i < run.page_count; ++i, ++block) {
      const int32_t valid = std::min(kBlockTokens, sequence.tokens + tokens - block * kBlockTokens);
      run_tokens += valid;
      ComparePage(sequence, block, valid, layer, run, run.pages[i]);
    }
    EXPECT_EQ(run.tokens, run_tokens);
    covered += run_tokens;
  }
  EXPECT_EQ(covered, sequence.tokens + tokens);  // T3
}

void CacheDriver::ComparePage(const Sequence& sequence, int32_t block, int32_t tokens,
                              int32_t layer, const PageRun& run, const KvPageView& page) {
  const TierOptions& options = cache_.options();
  const int32_t piece =
      sequence.tokens / options.piece_tokens * options.piece_tokens / kBlockTokens;
  const bool poisoned = sequence.poisoned.contains(block);
  const Tier tier = poisoned ? Tier::kHot : sequence.policy.TierOf(block, piece);
  const TensorKinds read = tier == Tier::kHot    ? TensorKinds{}
                           : tier == Tier::kWarm ? options.formats.warm[layer]
                                                 : options.formats.cold[layer];
  ASSERT_TRUE(run.read_k == read.k && run.read_v == read.v) << "block " << block;
  ASSERT_TRUE(ReadableAs(run.stored.k, read.k) && ReadableAs(run.stored.v, read.v));
  EXPECT_EQ(page.skip, 0u);
  if (tokens < kBlockTokens) {
    CompareOpenPage(sequence, block, tokens, layer, page.base);
    return;
  }
  const std::vector<std::byte>& expected = Expected(sequence, layer, block, run.stored);
  const size_t base = run.stored.BaseBytes();
  const size_t refine = run.stored.RefineBytes();
  ASSERT_TRUE(refine == 0 || page.refine != nullptr);
  ASSERT_TRUE(std::memcmp(page.base, expected.data(), base) == 0 &&
              (refine == 0 || std::memcmp(page.refine, expected.data() + base, refine) == 0))
      << "content " << sequence.content << " layer " << layer << " block " << block << " at "
      << sequence.tokens << " tokens, tier " << TierName(tier);
}

void CacheDriver::CompareOpenPage(const Sequence& sequence, int32_t block, int32_t tokens,
                                  int32_t layer, const std::byte* page) {
  const KvGeometry& g = cache_.options().geometry;
  const PageFormat f16{KvKind::kF16, KvKind::kF16, g.kv_heads, g.head_dim};
  for (int32_t head = 0; head < g.kv_heads; ++head) {
    const auto* k = reinterpret_cast<const Half*>(page + f16.KHead(head));
    const auto* v = reinterpret_cast<const Half*>(page + f16.VHead(head));
    for (int32_t t = 0; t < tokens; ++t) {
      const int32_t position = block * kBlockTokens + t;
      for (int32_t c = 0; c < g.head_dim; ++c) {
        const int32_t channel = head * g.head_dim + c;
        ASSERT_EQ(k[KF16Index(g.head_dim, t, c)], Value(sequence, layer, position, false, channel));
        ASSERT_EQ(v[VF16Index(g.head_dim, t, c)], Value(sequence, layer, position, true, channel));
      }
    }
  }
}

}  // namespace strata
