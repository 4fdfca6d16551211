#include "bench/ladder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/config/format_name.h"

namespace strata::bench {
namespace {

constexpr const char* kForms =
    "f16, i4, i2, k4v2, k2v4, ladder:SINK,RECENT,WARM[:WARMFORMAT,COLDFORMAT] or "
    "all-f16:SINK,RECENT,WARM, optionally with +even";

absl::Status BadLadder(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text), "' is not a ladder: expected ", kForms));
}

absl::Status ParseWindows(absl::string_view text, PositionalPolicy* policy) {
  std::array<int32_t, 3> tokens{};
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (parts.size() != tokens.size()) return BadLadder(text);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!absl::SimpleAtoi(parts[i], &tokens[i]) || tokens[i] < 0 || tokens[i] % kBlockTokens != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("window '", parts[i], "' is not a multiple of ", kBlockTokens, " tokens"));
    }
  }
  *policy = {tokens[0] / kBlockTokens, tokens[1] / kBlockTokens, tokens[2] / kBlockTokens};
  return absl::OkStatus();
}

TierFormats Formats(const Ladder& ladder, const Model& model) {
  const bool one_format = ladder.warm == ladder.cold;
  TensorKinds warm = ladder.warm;
  if (one_format && warm.k == KvKind::kI2) warm.k = KvKind::kI4;
  TierFormats formats = TierFormats::Uniform(model.config().layers, warm, ladder.cold);
  formats.KeepK(ladder.k_layers, model.k_errors());
  if (one_format) formats.warm = formats.cold;  // the warm tier is where the blocks are
  return formats;
}

}  // namespace

absl::StatusOr<Ladder> ParseLadder(absl::string_view text) {
  Ladder ladder;
  ladder.name = std::string(text);
  absl::string_view body = text;
  if (absl::ConsumeSuffix(&body, "+even")) ladder.k_layers = 0;
  const std::vector<std::string> parts = absl::StrSplit(body, ':');
  ladder.warm = {KvKind::kI4, KvKind::kI4};
  ladder.cold = {KvKind::kI2, KvKind::kI2};
  if (parts[0] == "ladder" && (parts.size() == 2 || parts.size() == 3)) {
    STRATA_RETURN_IF_ERROR(ParseWindows(parts[1], &ladder.policy));
    if (parts.size() == 3) {
      const std::vector<std::string> kinds = absl::StrSplit(parts[2], ',');
      if (kinds.size() != 2) return BadLadder(text);
      STRATA_ASSIGN_OR_RETURN(ladder.warm, ParseFormatName(kinds[0]));
      STRATA_ASSIGN_OR_RETURN(ladder.cold, ParseFormatName(kinds[1]));
    }
    return ladder;
  }
  if (parts[0] == "all-f16" && parts.size() == 2) {
    STRATA_RETURN_IF_ERROR(ParseWindows(parts[1], &ladder.policy));
    ladder.warm = ladder.cold = TensorKinds{};
    return ladder;
  }
  if (parts.size() != 1) return BadLadder(text);
  STRATA_ASSIGN_OR_RETURN(const TensorKinds kinds, ParseFormatName(parts[0]));
  if (kinds == TensorKinds{}) return ladder;  // f16: the default policy keeps everything hot
  // One format behind the piece: the warm tier in that format, without an end.
  ladder.policy = {1, 0, PositionalPolicy::kUnlimited};
  ladder.cold = kinds;
  ladder.warm = kinds;
  return ladder;
}

absl::StatusOr<SequenceHandle> AdmitWhenFree(TieredCache* cache, const PositionalPolicy& policy) {
  constexpr std::chrono::seconds kPatience{30};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    cache->Poll();
    auto sequence = cache->Admit(cache->options().max_context, policy);
    const bool full = sequence.status().code() == absl::StatusCode::kResourceExhausted;
    if (!full || std::chrono::steady_clock::now() > deadline) return sequence;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

double MeanBits(const SequenceUsage& usage) {
  double bits = 0;
  int64_t tokens = 0;
  for (int i = 0; i < kTierCount; ++i) {
    bits += usage.bits_per_value[i] * static_cast<double>(usage.tokens[i]);
    tokens += usage.tokens[i];
  }
  return tokens > 0 ? bits / static_cast<double>(tokens) : 0;
}

absl::StatusOr<std::unique_ptr<TieredCache>> MakeLadderCache(const Model& model, Backend* backend,
                                                             const Ladder& ladder,
                                                             const LadderCacheOptions& options) {
  TierOptions tiers;
  tiers.geometry = model.config().Geometry();
  tiers.formats = Formats(ladder, model);
  tiers.model_fingerprint = model.fingerprint();
  tiers.basis_hash = model.basis().Hash();
  tiers.piece_tokens = options.piece_tokens;
  tiers.max_sequences = 1;
  tiers.max_context = options.max_tokens;
  const SlotNeed need =
      WorstCase(ladder.policy, options.max_tokens, options.piece_tokens / kBlockTokens);
  const auto block_bytes = TieredCache::BlockBytes(tiers);
  // A tenth more for what a tier keeps beside its slots.
  const auto budget = [&](Tier tier) {
    const int i = static_cast<int>(tier);
    const size_t slots = block_bytes[i] * need.blocks[i];
    return slots == 0 ? size_t{0} : slots + slots / 10 + (size_t{4} << 20);
  };
  tiers.hot_bytes = budget(Tier::kHot);
  tiers.warm_bytes = budget(Tier::kWarm);
  tiers.cold_bytes = budget(Tier::kCold);
  if (tiers.cold_bytes > 0) {
    tiers.cold_path = absl::StrCat(options.cold_path, "/strata-bench-", getpid(), ".cold");
    tiers.staging_bytes = options.stage_everything
                              ? tiers.cold_bytes + (size_t{8} << 20)
                              : std::max(tiers.cold_bytes / 4, size_t{8} << 20);
  }
  return TieredCache::Create(tiers, backend->codec.get(), backend->memory.get());
}

}  // namespace strata::bench
