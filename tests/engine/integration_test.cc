// The engine over the real model, kernels and cache: every tier in use, down to the disk.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "server/engine/engine.h"
#include "tests/engine/recording_sink.h"
#include "tests/engine/test_tiers.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tiny_model.h"
#include "tiering/cold_format.h"
#include "tiering/tier_plan.h"

namespace strata {
namespace {

constexpr PositionalPolicy kNarrow = {.sink_blocks = 1, .hot_blocks = 1, .warm_blocks = 2};

// A tiny model may be done before the disk has written anything; then its blocks were read from
// warm memory all the time. Tests that are about the disk try again.
constexpr int kAttempts = 100;

class IntegrationTest : public ::testing::Test {
 protected:
  void LoadTiny() {
    const std::string path = folder_.Path("tiny.gguf");
    TinyModelOptions tiny;
    tiny.layers = 4;
    WriteTinyModel(tiny, path);
    Load(path);
  }
  void Load(const std::string& path) {
    auto backend = CreateCpuBackend({});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = std::make_unique<Backend>(*std::move(backend));
    ModelOptions options;
    options.path = path;
    options.calibrate_basis = false;
    auto model = Model::Load(options, backend_.get());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  TierOptions Tiers(TensorKinds warm, TensorKinds cold) const {
    return RoomyTiers(*model_, warm, cold, sequences_, 1024, folder_.Path("cold"));
  }
  TierOptions Ladder() const {
    return Tiers({KvKind::kI4, KvKind::kI4}, {KvKind::kI2, KvKind::kI2});
  }

  void Start(const TierOptions& tiers, const PositionalPolicy& policy) {
    engine_.reset();
    auto cache = TieredCache::Create(tiers, backend_->codec.get(), backend_->memory.get());
    ASSERT_TRUE(cache.ok()) << cache.status();
    EngineOptions options;
    options.max_sequences = sequences_;
    options.max_batch_tokens = 160;
    options.default_policy = policy;
    options.recomputes_max = 50;
    auto engine = Engine::Create(options, model_.get(), *std::move(cache), Clock::Real());
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  Request Make(int32_t prompt, int32_t max_tokens, uint32_t salt = 0) const {
    Request request;
    std::mt19937 random(salt);
    const auto vocabulary = static_cast<uint32_t>(model_->config().vocab_size);
    for (int32_t i = 0; i < prompt; ++i) {
      request.prompt.push_back(static_cast<int32_t>(3 + random() % (vocabulary - 3)));
    }
    request.stop.max_tokens = max_tokens;
    request.stop.ignore_eos = true;
    return request;
  }
  std::shared_ptr<RecordingSink> Submit(Request request) {
    auto sink = std::make_shared<RecordingSink>();
    engine_->Submit(std::move(request), sink);
    return sink;
  }
  std::shared_ptr<RecordingSink> Run(Request request) {
    auto sink = Submit(std::move(request));
    sink->AwaitEnd();
    EXPECT_TRUE(sink->finished.has_value()) << sink->error;
    return sink;
  }
  // Ends only when every byte and every reservation is back.
  void ExpectBaseline() {
    while (true) {
      const CacheSnapshot cache = engine_->Snapshot()->cache;
      uint64_t held = 0;
      for (const TierSnapshot& tier : cache.tiers) held += tier.used_bytes + tier.reserved_bytes;
      if (held == 0 && engine_->InFlight() == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(engine_->Snapshot()->cache.sequences, 0u);
  }

  const TestFolder folder_;  // outlives the cold file in it
  int32_t sequences_ = 8;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(IntegrationTest, EveryTierAndEveryLinkIsUsed) {
  LoadTiny();
  Start(Ladder(), kNarrow);
  SequenceUsage usage;
  bool all_links = false;
  for (int attempt = 0; attempt < kAttempts && !all_links; ++attempt) {
    const auto sink = Run(Make(600, 100));
    EXPECT_EQ(sink->started->policy, kNarrow);
    EXPECT_EQ(sink->tokens.size(), 100u);
    usage = sink->finished->usage;
    // The last token computed is 698, in block 10, a piece of its own: hot are the sink and blocks
    // 9 and 10, of which the last holds 59 tokens; warm 7 and 8; cold 1 to 6.
    EXPECT_EQ(usage.tokens[0], 64 + 64 + 59);
    EXPECT_EQ(usage.tokens[1], 2 * 64);
    EXPECT_EQ(usage.tokens[2], 6 * 64);
    all_links = std::all_of(usage.links.begin(), usage.links.end(),
                            [](const LinkCounters& link) { return link.bytes > 0; });
  }
  EXPECT_TRUE(all_links);
  for (const LinkCounters& link : usage.links) EXPECT_LT(link.bytes, link.f16_bytes);
  ExpectBaseline();
  EXPECT_GT(engine_->Snapshot()->cache.demoted_pages[1], 0u);
}

TEST_F(IntegrationTest, AnF16LadderGivesTheTokensOfHotMemoryAlone) {
  LoadTiny();
  const TierOptions ladder = Tiers({KvKind::kF16, KvKind::kF16}, {KvKind::kF16, KvKind::kF16});
  Start(ladder, kNarrow);
  for (const uint32_t salt : {1u, 2u, 3u}) {
    Request request = Make(500, 150, salt);
    const auto tiered = Run(request);
    EXPECT_GT(tiered->finished->usage.tokens[2], 0);
    request.policy.preset = PolicyPreset::kExact;
    const auto exact = Run(request);
    EXPECT_EQ(exact->finished->usage.tokens[1] + exact->finished->usage.tokens[2], 0);
    EXPECT_EQ(tiered->tokens, exact->tokens) << salt;
  }
}

TEST_F(IntegrationTest, AloneAndAmongOthersTheTokensAreTheSame) {
  LoadTiny();
  Start(Ladder(), kNarrow);
  const Request request = Make(450, 120);
  const auto alone = Run(request);
  // A text that repeats itself would hide mistakes.
  EXPECT_GT(std::set<int32_t>(alone->tokens.begin(), alone->tokens.end()).size(), 10u);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint32_t i = 0; i < 12; ++i) {
    sinks.push_back(Submit(Make(30 + 70 * static_cast<int32_t>(i), 20 + 9 * i, i + 1)));
    if (i == 5) sinks.push_back(Submit(request));
  }
  for (const auto& sink : sinks) sink->AwaitEnd();
  EXPECT_EQ(sinks[6]->tokens, alone->tokens);
  ExpectBaseline();
}

TEST_F(IntegrationTest, APolicyDecidesWhichTiersAreRead) {
  LoadTiny();
  Start(Ladder(), kNarrow);
  const auto tokens = [&](const PolicyRequest& policy) {
    Request request = Make(900, 20);
    request.policy = policy;
    const auto sink = Run(request);
    if (!sink->finished.has_value()) return std::array<int64_t, kTierCount>{};
    return sink->finished->usage.tokens;
  };
  using Tokens = std::array<int64_t, kTierCount>;
  // 919 tokens are stored, the last in block 14.
  EXPECT_EQ(tokens({}), (Tokens{64 + 64 + 23, 2 * 64, 10 * 64}));
  EXPECT_EQ(tokens({.preset = PolicyPreset::kExact}), (Tokens{919, 0, 0}));
  EXPECT_EQ(tokens({.min_format = KvKind::kF16}), (Tokens{919, 0, 0}));
  EXPECT_EQ(tokens({.preset = PolicyPreset::kCompact}), (Tokens{151, 2 * 64, 10 * 64}));
  EXPECT_EQ(tokens({.min_format = KvKind::kI4}), (Tokens{151, 12 * 64, 0}));
  EXPECT_EQ(tokens({.allow_cold = false}), (Tokens{151, 12 * 64, 0}));
  EXPECT_EQ(tokens({.sink_tokens = 200, .recent_tokens = 130}),
            (Tokens{4 * 64 + 3 * 64 + 23, 2 * 64, 5 * 64}));
  ExpectBaseline();
}

TEST_F(IntegrationTest, ADamagedDiskChangesNoToken) {
  LoadTiny();
  const TierOptions tiers = Ladder();
  Start(tiers, kNarrow);
  const Request request = Make(600, 200);
  const auto undamaged = Run(request);
  ExpectBaseline();

  // Counts up a byte of every record after every token, until damage was noticed. A record is read
  // in the step after the one in which its write ended, and from then on from memory: so, whether
  // steps or the disk are the faster ones, sooner or later one is hit in between.
  class Vandal : public RecordingSink {
   public:
    Vandal(const TierOptions& tiers, const Engine* engine)
        : plan_(TierPlan::Make(tiers)), engine_(*engine), noticed_before_(Noticed()) {
      file_ = open(tiers.cold_path.c_str(), O_RDWR);
      STRATA_CHECK(file_ >= 0);
    }
    ~Vandal() override { close(file_); }
    void OnDelta(DeltaEvent event) override {
      RecordingSink::OnDelta(std::move(event));
      if (Noticed() != noticed_before_) return;
      for (int32_t i = 0; i < plan_.slots[2]; ++i) {
        const auto at = static_cast<off_t>(
            cold_format::RecordOffset(i, plan_.slots[2], plan_.record.bytes()) + 99);
        char byte = 0;
        if (pread(file_, &byte, 1, at) != 1) continue;
        byte = static_cast<char>(byte + 1);
        STRATA_CHECK(pwrite(file_, &byte, 1, at) == 1);
      }
    }
    uint64_t Noticed() const {
      return engine_.Snapshot()->cache.integrity_failures[static_cast<size_t>(Damage::kChecksum)];
    }

   private:
    const TierPlan plan_;
    const Engine& engine_;
    const uint64_t noticed_before_;
    int file_ = -1;
  };
  const Request other = Make(100, 150, 9);
  const auto other_alone = Run(other);
  int64_t recomputed = 0;
  for (int attempt = 0; attempt < kAttempts && recomputed == 0; ++attempt) {
    const auto damaged = std::make_shared<Vandal>(tiers, engine_.get());
    engine_->Submit(request, damaged);
    const auto bystander = Submit(other);
    damaged->AwaitEnd();
    bystander->AwaitEnd();
    ASSERT_TRUE(damaged->finished.has_value()) << damaged->error;
    EXPECT_EQ(damaged->tokens, undamaged->tokens);
    EXPECT_EQ(bystander->finished->recomputed_tokens, 0);
    EXPECT_EQ(bystander->tokens, other_alone->tokens);
    recomputed = damaged->finished->recomputed_tokens;
  }
  EXPECT_GT(recomputed, 0);
  EXPECT_GT(engine_->Snapshot()->cache.integrity_failures[static_cast<size_t>(Damage::kChecksum)],
            0u);
  ExpectBaseline();
}

TEST_F(IntegrationTest, CancelledRequestsLeaveEveryTierEmpty) {
  LoadTiny();
  Start(Ladder(), kNarrow);
  std::mt19937 random(4);
  std::vector<std::pair<uint64_t, std::shared_ptr<RecordingSink>>> requests;
  for (uint32_t i = 0; i < 40; ++i) {
    auto sink = std::make_shared<RecordingSink>();
    const int32_t prompt = 1 + static_cast<int32_t>(random() % 800);
    requests.emplace_back(engine_->Submit(Make(prompt, 200, i), sink), sink);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 10));
    if (random() % 2 == 0) engine_->Cancel(requests[random() % requests.size()].first);
  }
  for (const auto& [ticket, sink] : requests) engine_->Cancel(ticket);
  for (const auto& [ticket, sink] : requests) sink->AwaitEnd();
  ExpectBaseline();
}

// The default model, where it is at hand.
TEST_F(IntegrationTest, TheDefaultModelGivesTheSameTokensAloneAndAmongSixteenOthers) {
  const char* set = std::getenv("STRATA_TEST_MODEL");
  const char* home = std::getenv("HOME");
  const std::string path =
      set != nullptr ? set
                     : absl::StrCat(home != nullptr ? home : "",
                                    "/.cache/strata/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no model at " << path;
  Load(path);
  sequences_ = 17;
  Start(Ladder(), kNarrow);
  const auto spans = model_->tokenizer().Encode(
      "The lighthouse keeper wrote one line a day. Today the line was about the storm, "
      "and about the ship that did not come. He counted the lamps twice, as he always did, "
      "and then he climbed down to the rocks to look for wood.",
      {});
  ASSERT_TRUE(spans.ok());
  Request request = Make(0, 24);
  while (request.prompt.size() < 330) {
    for (const TokenSpan& span : *spans) request.prompt.push_back(span.id);
  }
  const auto alone = Run(request);
  EXPECT_GT(alone->finished->usage.tokens[2], 0);
  EXPECT_FALSE(alone->text.empty());
  // Of many lengths, so that steps mix prefill pieces and decodes, and all of them run at once.
  std::vector<std::shared_ptr<RecordingSink>> others;
  std::shared_ptr<RecordingSink> among;
  for (uint32_t i = 0; i < 16; ++i) {
    others.push_back(Submit(Make(3 + 8 * static_cast<int32_t>(i), 60 - 2 * i, i + 1)));
    if (i == 7) among = Submit(request);
  }
  uint64_t most_running = 0;
  while (engine_->InFlight() > 0) {
    most_running = std::max(most_running, engine_->Snapshot()->running);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  among->AwaitEnd();
  EXPECT_EQ(most_running, 17u);
  EXPECT_EQ(among->tokens, alone->tokens);
  EXPECT_EQ(among->text, alone->text);
  ExpectBaseline();
}

}  // namespace
}  // namespace strata
