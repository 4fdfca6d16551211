#include "server/config/memory_plan.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "server/config/option_table.h"
#include "tiering/tiered_cache.h"

namespace strata {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// SmolLM2's server has 35 MiB beside weights, tiers and steps, 20 of them shared libraries.
constexpr uint64_t kProcess = 64 * kMiB;
constexpr uint64_t kPerToken = 512;  // of the vocabulary: texts, merges and their tables
// A message is held about twice while it is read: as it came, and parsed.
constexpr uint64_t kMessagesAtOnce = 4;
constexpr uint64_t kLimitStep = 64 * kMiB;

uint64_t Less(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

}  // namespace

uint64_t MessageMemory(const ServerOptions& options) {
  return kMessagesAtOnce * options.limits.max_message_bytes;
}

uint64_t MemoryPlan::MemoryBytes() const {
  const uint64_t computing = weight_bytes + tiers.hot_bytes + step_bytes;
  return (on_gpu ? 0 : computing) + tiers.warm_bytes + tiers.staging_bytes + message_bytes +
         process_bytes;
}

uint64_t MemoryPlan::DeviceBytes() const {
  return on_gpu ? weight_bytes + tiers.hot_bytes + step_bytes + gather_bytes : 0;
}

uint64_t MemoryPlan::MemoryLimit() const {
  const uint64_t bytes = MemoryBytes() + MemoryBytes() / 8;
  return (bytes + kLimitStep - 1) / kLimitStep * kLimitStep;
}

int64_t MemoryPlan::TokensPerSequence(Tier tier) const {
  return int64_t{layout.slots[IndexOf(tier)]} / tiers.max_sequences * kBlockTokens;
}

absl::StatusOr<MemoryPlan> MakeMemoryPlan(const ServerOptions& options, const ModelSize& model,
                                          MachineFacts machine) {
  MemoryPlan plan;
  plan.on_gpu = absl::StartsWith(FindOption("device")->get(options), "cuda");
  plan.weight_bytes = model.weight_bytes;
  plan.step_bytes = model.StepBytes(options.limits.max_batch_tokens, options.limits.max_sequences);
  if (plan.on_gpu && options.device.warm_attention != "host") {
    plan.gather_bytes = options.device.gather_bytes.value_or(kGatherBytesDefault);
  }
  plan.message_bytes = MessageMemory(options);
  plan.process_bytes = kProcess + kPerToken * static_cast<uint64_t>(model.config.vocab_size);
  // The server derives budgets once its weights are loaded.
  machine.memory_available =
      Less(machine.memory_available, plan.weight_bytes + plan.step_bytes + plan.process_bytes);
  // Which layers keep K is not known without running the model: the bytes are those of any choice,
  // but for the padding of records.
  const ModelFacts facts = {model.config.Geometry(), model.config.context_length, 0, 0, {}};
  STRATA_ASSIGN_OR_RETURN(plan.tiers, DeriveTierOptions(options, facts, machine));
  plan.layout = TierPlan::Make(plan.tiers);
  STRATA_RETURN_IF_ERROR(plan.layout.CheckMinimum(plan.tiers));
  const EngineOptions engine = DeriveEngineOptions(options, plan.tiers);
  plan.windows = engine.default_policy.value_or(plan.layout.DefaultPolicy(plan.tiers));
  return plan;
}

}  // namespace strata
