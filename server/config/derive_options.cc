#include "server/config/derive_options.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/memory_limits.h"
#include "base/status_macros.h"
#include "tiering/tier_plan.h"
#include "tiering/tiered_cache.h"

namespace strata {
namespace {

constexpr uint64_t kShare = 4;  // a derived budget is at most this part of what is available
// Of a device's memory a tenth is left alone: nobody else needs it as the host's processes need
// RAM, but scratch for longer contexts comes out of it.
constexpr uint64_t kDeviceLeft = 10;
constexpr uint64_t kStagingStart = uint64_t{16} << 20;

absl::StatusOr<TierFormats> DeriveFormats(const CacheSection& cache, const ModelFacts& model) {
  const int32_t layers = model.geometry.layers;
  TierFormats formats = TierFormats::Uniform(layers, cache.warm_format, cache.cold_format);
  formats.KeepK(cache.cold_k_layers, model.k_errors);
  for (const ColdLayers& entry : cache.cold_layers) {
    if (entry.last >= layers) {
      return absl::InvalidArgumentError(absl::StrCat("cold-layers: layer ", entry.last,
                                                     " of a model with layers 0 to ", layers - 1));
    }
    std::fill(formats.cold.begin() + entry.first, formats.cold.begin() + entry.last + 1,
              entry.kinds);
  }
  return formats;
}

// Bytes that every block of every sequence would take in a tier, and an eighth for bookkeeping.
uint64_t NeededBy(const TierOptions& tiers, Tier tier) {
  const uint64_t blocks =
      uint64_t{static_cast<uint32_t>(tiers.max_sequences)} *
      static_cast<uint32_t>(BlocksForTokens(tiers.max_context) + tiers.piece_tokens / kBlockTokens);
  const uint64_t bytes = blocks * TieredCache::BlockBytes(tiers)[static_cast<size_t>(tier)];
  return bytes + bytes / 8;
}

// The least power of two, from kStagingStart on, that lets a sequence of max_context tokens stream
// all its blocks, whatever its policy. More than a quarter of the memory is left to the cache to
// refuse, with its numbers.
uint64_t DeriveStaging(TierOptions tiers, uint64_t memory_available) {
  tiers.staging_bytes = kStagingStart;
  while (tiers.staging_bytes < memory_available / kShare) {
    const TierPlan plan = TierPlan::Make(tiers);
    if (plan.staging_units >= plan.StagingNeed(BlocksForTokens(tiers.max_context))) break;
    tiers.staging_bytes *= 2;
  }
  return tiers.staging_bytes;
}

void DeriveBudgets(const CacheSection& cache, const MachineFacts& machine, TierOptions* tiers) {
  const uint64_t memory = machine.memory_available / kShare;
  // The cold bytes first: BlockBytes of a tier depends on there being one.
  const bool cold = !cache.cold_path.empty() && cache.cold_bytes.value_or(1) > 0;
  tiers->cold_bytes = cold ? 1 : 0;
  uint64_t hot = memory;
  if (machine.device_available.has_value()) {
    hot = *machine.device_available - *machine.device_available / kDeviceLeft;
  }
  tiers->hot_bytes = cache.hot_bytes.value_or(std::min(hot, NeededBy(*tiers, Tier::kHot)));
  tiers->warm_bytes = cache.warm_bytes.value_or(std::min(memory, NeededBy(*tiers, Tier::kWarm)));
  if (!cold) return;
  tiers->cold_bytes = cache.cold_bytes.value_or(
      std::min(machine.disk_available / kShare, NeededBy(*tiers, Tier::kCold)));
  tiers->staging_bytes = cache.staging_bytes.has_value()
                             ? *cache.staging_bytes
                             : DeriveStaging(*tiers, machine.memory_available);
}

int32_t WindowBlocks(int32_t tokens) {
  return tokens == ServerOptions::kEndlessWindow ? PositionalPolicy::kUnlimited
                                                 : BlocksForTokens(tokens);
}

}  // namespace

MachineFacts ReadMachine(const std::string& cold_path) {
  MachineFacts machine;
  if (const auto memory = AvailableMemory(); memory.ok()) machine.memory_available = memory->bytes;
  if (cold_path.empty()) return machine;
  const std::string folder = std::filesystem::path(cold_path).parent_path();
  const auto disk = AvailableDisk(folder.empty() ? "." : folder);
  if (disk.ok()) machine.disk_available = disk->bytes;
  return machine;
}

absl::StatusOr<TierOptions> DeriveTierOptions(const ServerOptions& options, const ModelFacts& model,
                                              const MachineFacts& machine) {
  const CacheSection& cache = options.cache;
  TierOptions tiers;
  tiers.geometry = model.geometry;
  tiers.model_fingerprint = model.fingerprint;
  tiers.basis_hash = model.basis_hash;
  tiers.max_sequences = options.limits.max_sequences;
  tiers.max_context =
      options.limits.max_context > 0 ? options.limits.max_context : model.context_length;
  if (tiers.max_context > model.context_length) {
    return absl::InvalidArgumentError(absl::StrCat("max-context: ", tiers.max_context,
                                                   " is above the model's context of ",
                                                   model.context_length, " tokens"));
  }
  tiers.cold_path = cache.cold_path;
  tiers.piece_tokens = cache.piece_tokens;
  tiers.io_engine = cache.io_engine;
  tiers.io_depth_max = cache.io_depth;
  tiers.disk_write_bytes_per_s = cache.disk_write_rate;
  STRATA_ASSIGN_OR_RETURN(tiers.formats, DeriveFormats(cache, model));
  DeriveBudgets(cache, machine, &tiers);
  STRATA_RETURN_IF_ERROR(tiers.Validate());
  return tiers;
}

EngineOptions DeriveEngineOptions(const ServerOptions& options, const TierOptions& tiers) {
  EngineOptions engine;
  engine.max_sequences = options.limits.max_sequences;
  engine.queue_max = options.limits.queue_max;
  engine.max_batch_tokens = options.limits.max_batch_tokens;
  engine.max_context = tiers.max_context;

  const CacheSection& cache = options.cache;
  if (!cache.sink_tokens && !cache.hot_window && !cache.warm_window) return engine;
  PositionalPolicy policy = TieredCache::DefaultPolicy(tiers);
  if (cache.sink_tokens) policy.sink_blocks = WindowBlocks(*cache.sink_tokens);
  if (cache.hot_window) {
    // Where the budgets would have kept everything hot they say nothing of a warm window.
    if (policy.hot_blocks >= PositionalPolicy::kUnlimited) {
      policy.warm_blocks = PositionalPolicy::kUnlimited;
    }
    policy.hot_blocks = WindowBlocks(*cache.hot_window);
  }
  if (cache.warm_window) policy.warm_blocks = WindowBlocks(*cache.warm_window);
  engine.default_policy = policy;
  return engine;
}

std::string ModelNameOf(const ModelSection& model) {
  if (!model.name.empty()) return model.name;
  const std::string file = std::filesystem::path(model.path).filename().string();
  return std::string(absl::StripSuffix(file, ".gguf"));
}

}  // namespace strata
