// `strata plan` promises what the server then does.

#include "tools/cli/plan.h"

#include <limits>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "server/config/memory_plan.h"
#include "tests/server/program_fixture.h"

namespace strata {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PlanTest : public EndToEndTest {
 protected:
  json Plan(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {STRATA_BINARY, "plan", "--json", "--model=" + Path("tiny.gguf"),
                                 "--max-sequences=4"});
    Process process(flags, Path("plan"));
    EXPECT_EQ(process.Wait(), 0) << process.err();
    return json::parse(process.out());
  }
  v1::ModelInfo Model() {
    const auto client = Start({"info", "--json"});
    EXPECT_EQ(client->Wait(), 0) << client->err();
    v1::ListModelsResponse models;
    const std::string text = json::parse(client->out())["models"].dump();
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &models).ok());
    return models.models(0);
  }
  static uint32_t Tokens(const json& window) {
    return window.is_number() ? window.get<uint32_t>() : std::numeric_limits<uint32_t>::max();
  }
  void ExpectAsPlanned(const json& plan) {
    const v1::CacheStats stats = Stats();
    const char* names[] = {"hot", "warm", "cold"};
    for (int i = 0; i < 3; ++i) {
      const json& tier = plan["tiers"][names[i]];
      EXPECT_EQ(stats.tiers(i).capacity_bytes(),
                tier["slots"].get<uint64_t>() * tier["slot_bytes"].get<uint64_t>())
          << names[i];
      EXPECT_EQ(stats.tiers(i).layout(), tier["format"].get<std::string>());
    }
    const v1::ModelInfo model = Model();
    EXPECT_EQ(model.weight_bytes(), plan["memory"]["weight_bytes"].get<uint64_t>());
    EXPECT_EQ(model.context_length(), plan["max_context"].get<uint32_t>());
    const v1::KvPolicy& policy = model.default_kv_policy();
    EXPECT_EQ(policy.sink_tokens(), Tokens(plan["windows"]["sink"]));
    EXPECT_EQ(policy.recent_tokens(), Tokens(plan["windows"]["hot"]));
    if (policy.allow_cold()) {
      EXPECT_EQ(policy.warm_tokens(), Tokens(plan["windows"]["warm"]));
    }
  }
};

TEST_F(PlanTest, TheServerHasTheTiersWeightsAndWindowsOfThePlan) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--hot-bytes=2MiB", "--warm-bytes=1MiB",
                                 "--cold-path=" + Path("cold"), "--cold-bytes=4MiB",
                                 "--staging-bytes=8MiB", "--piece-tokens=64"},
        Ladder(),
        {"--hot-bytes=64MiB", "--warm-bytes=0", "--max-context=1024"}}) {
    const json plan = Plan(flags);
    Serve(flags);
    ExpectAsPlanned(plan);
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->Wait(), 0);
  }
}

TEST_F(PlanTest, ItSaysWhatDoesNotFit) {
  Process small({STRATA_BINARY, "plan", "--model=" + Path("tiny.gguf"), "--hot-bytes=1KiB"},
                Path("small"));
  EXPECT_EQ(small.Wait(), 1);
  EXPECT_THAT(small.err(), HasSubstr("hot_bytes of 1024 hold 0 blocks"));
  Process unknown({STRATA_BINARY, "plan", "--model=x", "--hot-byte=1KiB"}, Path("unknown"));
  EXPECT_EQ(unknown.Wait(), 2);
  EXPECT_THAT(unknown.err(), HasSubstr("--hot-byte"));
}

TEST(MemoryPlanTest, TheParts) {
  ModelSize model;
  model.config.layers = 2;
  model.config.kv_heads = 2;
  model.config.query_heads = 4;
  model.config.head_dim = 32;
  model.config.width = 128;
  model.config.ffn_width = 256;
  model.config.vocab_size = 1000;
  model.config.context_length = 4096;
  model.weight_bytes = 10 << 20;
  ServerOptions options;
  options.cache.hot_bytes = uint64_t{64} << 20;
  options.cache.warm_bytes = uint64_t{32} << 20;
  options.limits.max_message_bytes = uint64_t{1} << 20;
  const auto plan = MakeMemoryPlan(options, model, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->message_bytes, uint64_t{4} << 20);
  // Rows of the largest step: (2 width + 3 q + 2 kv + 3 ffn) activations, states of 4 heads, and
  // the logits of 16 sequences.
  EXPECT_EQ(plan->step_bytes, 4u * 320 * (256 + 384 + 128 + 768) + 4u * 320 * 4 * 34 + 4u * 16000);
  EXPECT_EQ(plan->MemoryBytes(), plan->weight_bytes + (uint64_t{96} << 20) + plan->step_bytes +
                                     plan->message_bytes + plan->process_bytes);
  EXPECT_GE(plan->MemoryLimit(), plan->MemoryBytes() + plan->MemoryBytes() / 8);
  EXPECT_EQ(plan->MemoryLimit() % (uint64_t{64} << 20), 0u);

  // On a GPU: what computes lies there, with room to gather the host's pages where it reads them.
  options.device.device.kind = DeviceChoice::Kind::kCuda;
  const auto gpu = MakeMemoryPlan(options, model, {});
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const uint64_t computing = gpu->weight_bytes + (uint64_t{64} << 20) + gpu->step_bytes;
  EXPECT_EQ(gpu->DeviceBytes(), computing + (uint64_t{128} << 20));
  EXPECT_EQ(gpu->MemoryBytes(), (uint64_t{32} << 20) + gpu->message_bytes + gpu->process_bytes +
                                    gpu->tiers.staging_bytes);
  options.device.gather_bytes = 4096;
  EXPECT_EQ(MakeMemoryPlan(options, model, {})->DeviceBytes(), computing + 4096);
  options.device.gather_bytes.reset();
  options.device.warm_attention = "host";
  EXPECT_EQ(MakeMemoryPlan(options, model, {})->DeviceBytes(), computing);
  options.device = {};

  // Without budgets: a quarter of what the weights leave, at most what all sequences can use.
  options.cache.hot_bytes.reset();
  MachineFacts machine;
  machine.memory_available = uint64_t{300} << 20;
  const auto derived = MakeMemoryPlan(options, model, machine);
  ASSERT_TRUE(derived.ok()) << derived.status();
  EXPECT_LE(derived->tiers.hot_bytes, machine.memory_available / 4);
  EXPECT_LT(derived->MemoryBytes() - derived->message_bytes, machine.memory_available);
}

}  // namespace
}  // namespace strata
