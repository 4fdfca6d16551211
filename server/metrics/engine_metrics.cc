#include "server/metrics/engine_metrics.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/format_name.h"
#include "server/metrics/family_builder.h"

namespace strata {
namespace {

constexpr Tier kTiers[] = {Tier::kHot, Tier::kWarm, Tier::kCold};
// In the order of FinishReason.
constexpr std::array<const char*, 5> kFinishReasons = {"eos", "stop", "length", "context",
                                                       "time_limit"};
// In the order of Link.
constexpr std::array<std::pair<const char*, const char*>, kLinkCount> kLinks = {
    {{"hot", "warm"}, {"warm", "cold"}, {"cold", "hot"}}};

// In the order of Damage.
constexpr std::array<const char*, kDamageCount> kDamages = {"checksum", "short"};

const TierSnapshot& StatsOf(const EngineSnapshot& snapshot, Tier tier) {
  return snapshot.cache.tiers[static_cast<size_t>(tier)];
}

void AddRequests(const EngineSnapshot& s, const EngineOptions& options, FamilyBuilder* out) {
  out->Gauge("strata_requests_running", "Requests being computed.", static_cast<double>(s.running));
  out->Gauge("strata_requests_waiting", "Requests in the queue.", static_cast<double>(s.waiting));
  out->Gauge("strata_requests_running_limit", "Requests that may be computed at once.",
             options.max_sequences);
  out->Gauge("strata_requests_waiting_limit", "Requests the queue has room for.",
             options.queue_max);
  const std::string ended = "Requests that ended, by reason.";
  for (size_t i = 0; i < kFinishReasons.size(); ++i) {
    out->Counter("strata_requests_total", ended, static_cast<double>(s.finished[i]),
                 {{"finish_reason", kFinishReasons[i]}});
  }
  const std::pair<const char*, uint64_t> others[] = {
      {"cancelled", s.cancelled}, {"deadline", s.deadline_exceeded}, {"error", s.failed}};
  for (const auto& [reason, count] : others) {
    out->Counter("strata_requests_total", ended, static_cast<double>(count),
                 {{"finish_reason", reason}});
  }
  const std::pair<const char*, uint64_t> rejections[] = {
      {"queue_full", s.rejected_queue_full},
      {"capacity", s.rejected_capacity},
      {"queue_timeout", s.rejected_queue_timeout},
      {"invalid", s.rejected_invalid}};
  for (const auto& [reason, count] : rejections) {
    out->Counter("strata_requests_rejected_total", "Requests refused before they ran, by reason.",
                 static_cast<double>(count), {{"reason", reason}});
  }
}

void AddTokensAndTimes(const EngineSnapshot& s, FamilyBuilder* out) {
  out->Counter("strata_prompt_tokens_total", "Prompt tokens computed.",
               static_cast<double>(s.prompt_tokens));
  out->Counter("strata_generation_tokens_total", "Tokens generated.",
               static_cast<double>(s.generation_tokens));
  out->Counter("strata_recomputed_tokens_total",
               "Tokens computed again because their pages were damaged.",
               static_cast<double>(s.recomputed_tokens));
  out->Counter("strata_steps_total", "Steps of the engine.", static_cast<double>(s.steps));
  out->Gauge("strata_engine_stalled", "1 while work is queued but no step is made.",
             s.stalled ? 1 : 0);
  out->Histogram("strata_time_to_first_token_seconds", "From arrival to the first token.",
                 s.time_to_first_token);
  out->Histogram("strata_inter_token_latency_seconds", "Between two tokens of a request.",
                 s.inter_token_latency);
  out->Histogram("strata_request_duration_seconds", "From arrival to the end.", s.request_duration);
  out->Histogram("strata_request_queue_seconds", "From arrival to the first step.",
                 s.request_queue);
  out->Histogram("strata_request_prefill_seconds", "Computing the prompt.", s.request_prefill);
  out->Histogram("strata_request_decode_seconds", "From the first token to the last.",
                 s.request_decode);
  out->Histogram("strata_step_seconds", "Time of a step, by whether it computed a prompt.",
                 s.step_seconds_prefill, {{"phase", "prefill"}});
  out->Histogram("strata_step_seconds", "Time of a step, by whether it computed a prompt.",
                 s.step_seconds_decode, {{"phase", "decode"}});
  out->Histogram("strata_step_batch_tokens", "Tokens of a step.", s.step_batch_tokens);
}

using TierField = uint64_t TierSnapshot::*;

void AddTierBytes(const EngineSnapshot& s, const TierOptions& tiers, const char* name,
                  const char* help, TierField field, FamilyBuilder* out) {
  for (const Tier tier : kTiers) {
    out->Gauge(name, help, static_cast<double>(StatsOf(s, tier).*field),
               {{"tier", TierName(tier)}, {"format", TierFormatName(tiers, tier)}});
  }
}

void AddTierCounts(const EngineSnapshot& s, const char* name, const char* help, TierField field,
                   FamilyBuilder* out) {
  for (const Tier tier : kTiers) {
    out->Gauge(name, help, static_cast<double>(StatsOf(s, tier).*field),
               {{"tier", TierName(tier)}});
  }
}

void AddTierTotals(const EngineSnapshot& s, const char* name, const char* help, TierField field,
                   FamilyBuilder* out) {
  for (const Tier tier : kTiers) {
    out->Counter(name, help, static_cast<double>(StatsOf(s, tier).*field),
                 {{"tier", TierName(tier)}});
  }
}

void AddTiers(const EngineSnapshot& s, const TierOptions& tiers, FamilyBuilder* out) {
  AddTierBytes(s, tiers, "strata_kv_tier_capacity_bytes", "What a tier may hold.",
               &TierSnapshot::capacity_bytes, out);
  AddTierBytes(s, tiers, "strata_kv_tier_used_bytes",
               "What a tier holds; cold: bytes of records on disk.", &TierSnapshot::used_bytes,
               out);
  AddTierBytes(s, tiers, "strata_kv_tier_reserved_bytes",
               "What is promised to running requests, used or not.", &TierSnapshot::reserved_bytes,
               out);
  AddTierBytes(s, tiers, "strata_kv_tier_f16_bytes", "What the pages of a tier would take in F16.",
               &TierSnapshot::f16_bytes, out);
  AddTierCounts(s, "strata_kv_tier_tokens", "Tokens whose pages lie in a tier.",
                &TierSnapshot::tokens, out);
  AddTierCounts(s, "strata_kv_tier_pages", "Pages (a layer of 64 tokens) in a tier.",
                &TierSnapshot::pages, out);
  AddTierCounts(s, "strata_kv_tier_free_pages", "Pages a tier still has room for.",
                &TierSnapshot::free_pages, out);
  for (const Tier tier : kTiers) {
    // Bytes are the base unit; bits a value count parameters in.
    const std::pair<const char*, double> bits[] = {{"k", StatsOf(s, tier).k_bits_per_value},
                                                   {"v", StatsOf(s, tier).v_bits_per_value}};
    for (const auto& [tensor, value] : bits) {
      out->Gauge("strata_kv_bytes_per_value", "Bytes of a stored value, parameters included.",
                 value / 8, {{"tier", TierName(tier)}, {"tensor", tensor}});
    }
  }
  AddTierTotals(s, "strata_kv_attended_tokens_total", "Tokens read by attention, by tier.",
                &TierSnapshot::attended_tokens, out);
  AddTierTotals(s, "strata_kv_tier_lookups_total",
                "Pages that steps wanted, by the tier their block lies in.", &TierSnapshot::lookups,
                out);
  AddTierTotals(s, "strata_kv_tier_hits_total",
                "Pages that were found in memory; cold: staged by an earlier step.",
                &TierSnapshot::hits, out);
  const TierSnapshot& hot = StatsOf(s, Tier::kHot);
  const double capacity = static_cast<double>(hot.capacity_bytes);
  out->Gauge("strata_kv_cache_usage_ratio", "Used part of the hot tier.",
             capacity > 0 ? static_cast<double>(hot.used_bytes) / capacity : 0);
}

using LinkField = uint64_t LinkCounters::*;

void AddLink(const CacheSnapshot& cache, const char* name, const char* help, LinkField field,
             double scale, FamilyBuilder* out) {
  for (size_t i = 0; i < kLinks.size(); ++i) {
    out->Counter(name, help, static_cast<double>(cache.links[i].*field) * scale,
                 {{"source", kLinks[i].first}, {"target", kLinks[i].second}});
  }
}

void AddMoves(const CacheSnapshot& cache, FamilyBuilder* out) {
  AddLink(cache, "strata_kv_link_bytes_total", "Bytes of pages that crossed a link.",
          &LinkCounters::bytes, 1, out);
  AddLink(cache, "strata_kv_link_f16_bytes_total",
          "Bytes that the same pages would have had in F16.", &LinkCounters::f16_bytes, 1, out);
  AddLink(cache, "strata_kv_link_pages_total", "Pages that crossed a link.", &LinkCounters::pages,
          1, out);
  AddLink(cache, "strata_kv_link_seconds_total", "Time a link was busy.",
          &LinkCounters::nanoseconds, 1e-9, out);
  for (size_t i = 0; i < 2; ++i) {
    out->Counter("strata_kv_demoted_pages_total", "Pages moved one tier down.",
                 static_cast<double>(cache.demoted_pages[i]),
                 {{"source", kLinks[i].first}, {"target", kLinks[i].second}});
  }
  for (const Tier tier : kTiers) {
    // Every page that leaves a tier without moving on is one whose request let go of it.
    out->Counter("strata_kv_evicted_pages_total",
                 "Pages dropped because their request ended or starts over.",
                 static_cast<double>(cache.tiers[static_cast<size_t>(tier)].dropped_pages),
                 {{"source", TierName(tier)}, {"target", "none"}});
  }
  out->Histogram("strata_kv_quantize_seconds", "Encoding of a block.", cache.quantize);
  out->Histogram("strata_kv_fetch_wait_seconds", "Waits of steps for pages of a tier.",
                 cache.fetch_wait, {{"tier", "cold"}});
  out->Histogram("strata_kv_move_wait_seconds", "Waits of steps for a free slot or an encoding.",
                 cache.move_wait);
  out->Counter("strata_kv_refused_blocks_total",
               "Blocks kept in F16 because a value was not finite.",
               static_cast<double>(cache.refused_blocks));
  for (const Tier tier : {Tier::kWarm, Tier::kCold}) {
    const auto i = static_cast<size_t>(tier);
    const std::pair<const char*, double> errors[] = {{"k", cache.k_relative_error[i]},
                                                     {"v", cache.v_relative_error[i]}};
    for (const auto& [tensor, error] : errors) {
      out->Gauge("strata_kv_quantization_relative_error",
                 "Error of the page sampled last against its F16 original, as the tier reads it.",
                 error, {{"tier", TierName(tier)}, {"tensor", tensor}});
    }
  }
}

// A family of one series for reads and one for writes.
void AddIo(const char* name, const char* help, uint64_t reads, uint64_t writes,
           FamilyBuilder* out) {
  out->Counter(name, help, static_cast<double>(reads), {{"op", "read"}});
  out->Counter(name, help, static_cast<double>(writes), {{"op", "write"}});
}

void AddDisk(const CacheSnapshot& cache, FamilyBuilder* out) {
  for (size_t i = 0; i < kDamages.size(); ++i) {
    out->Counter("strata_kv_integrity_failures_total", "Records found damaged when read.",
                 static_cast<double>(cache.integrity_failures[i]),
                 {{"tier", "cold"}, {"kind", kDamages[i]}});
  }
  out->Gauge("strata_kv_cold_degraded", "1 while the disk fails or is full.",
             cache.cold_degraded ? 1 : 0);
  AddIo("strata_io_submitted_total", "Transfers handed to the disk.", cache.io_reads_submitted,
        cache.io_writes_submitted, out);
  AddIo("strata_io_completed_total", "Transfers the disk has answered, with data or an error.",
        cache.io_reads_completed, cache.io_writes_completed, out);
  AddIo("strata_io_errors_total", "Transfers that failed or came up short, repeated or not.",
        cache.io_read_errors, cache.io_write_errors, out);
  const std::string latency = "From handing a transfer to the disk to its answer.";
  out->Histogram("strata_io_latency_seconds", latency, cache.io_read_latency, {{"op", "read"}});
  out->Histogram("strata_io_latency_seconds", latency, cache.io_write_latency, {{"op", "write"}});
  out->Gauge("strata_io_engine_info", "How the disk is read and written.", 1,
             {{"engine", cache.io_engine.empty() ? "none" : cache.io_engine}});
}

std::string WindowText(int32_t blocks) {
  return blocks >= PositionalPolicy::kUnlimited ? "unlimited"
                                                : absl::StrCat(int64_t{blocks} * kBlockTokens);
}

void AddFacts(const EngineOptions& options, const TierOptions& tiers,
              const PositionalPolicy& policy, const MetricLabels& labels, FamilyBuilder* out) {
  out->Gauge("strata_build_info", "The build.", 1,
             {{"version", labels.version}, {"commit", labels.git_commit}});
  out->Gauge("strata_model_info", "The model being served.", 1,
             {{"name", labels.model},
              {"architecture", labels.architecture},
              {"weight_format", labels.weight_format},
              {"backend", labels.backend}});
  out->Gauge("strata_device_info", "What computes.", 1,
             {{"backend", labels.backend}, {"device", labels.device}});
  if (labels.warm_attention.has_value()) {
    const WarmAttentionFacts& warm = *labels.warm_attention;
    for (const bool on_host : {false, true}) {
      const char* place = on_host ? "host" : "device";
      out->Gauge("strata_warm_attention_selected",
                 "Who attends to pages in host memory: the GPU or the CPU.",
                 warm.on_host == on_host ? 1 : 0, {{"place", place}});
      out->Gauge("strata_warm_attention_tokens_per_second",
                 "Warm tokens of one layer attended a second, measured at start; 0: not measured.",
                 on_host ? warm.host_tokens_per_s : warm.device_tokens_per_s, {{"place", place}});
    }
  }
  out->Gauge("strata_cache_config_info", "Windows, in tokens, and limits in force.", 1,
             {{"block_tokens", absl::StrCat(kBlockTokens)},
              {"sink_tokens", WindowText(policy.sink_blocks)},
              {"hot_window", WindowText(policy.hot_blocks)},
              {"warm_window", WindowText(policy.warm_blocks)},
              {"piece_tokens", absl::StrCat(tiers.piece_tokens)},
              {"max_sequences", absl::StrCat(options.max_sequences)},
              {"max_context", absl::StrCat(options.max_context)}});
}

}  // namespace

std::vector<prometheus::MetricFamily> EngineFamilies(const EngineSnapshot& snapshot,
                                                     const EngineOptions& options,
                                                     const TierOptions& tiers,
                                                     const PositionalPolicy& default_policy,
                                                     const MetricLabels& labels) {
  FamilyBuilder out;
  AddRequests(snapshot, options, &out);
  AddTokensAndTimes(snapshot, &out);
  AddTiers(snapshot, tiers, &out);
  AddMoves(snapshot.cache, &out);
  AddDisk(snapshot.cache, &out);
  AddFacts(options, tiers, default_policy, labels, &out);
  return out.Take();
}

EngineMetrics::EngineMetrics(const Engine* engine, MetricLabels labels)
    : engine_(engine), labels_(std::move(labels)) {}

std::vector<prometheus::MetricFamily> EngineMetrics::Collect() const {
  return EngineFamilies(*engine_->Snapshot(), engine_->options(), engine_->tier_options(),
                        engine_->default_policy(), labels_);
}

}  // namespace strata
