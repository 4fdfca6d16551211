#include "server/rpc/cache_reports.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "google/protobuf/util/time_util.h"
#include "server/config/format_name.h"

namespace strata::rpc {
namespace {

using google::protobuf::util::TimeUtil;

constexpr Tier kTiers[] = {Tier::kHot, Tier::kWarm, Tier::kCold};

struct LinkEnds {
  Tier from;
  Tier to;
};
LinkEnds EndsOf(Link link) {
  switch (link) {
    case Link::kHotToWarm:
      return {Tier::kHot, Tier::kWarm};
    case Link::kWarmToCold:
      return {Tier::kWarm, Tier::kCold};
    case Link::kColdToHot:
      return {Tier::kCold, Tier::kHot};
  }
  return {Tier::kHot, Tier::kHot};
}

uint32_t WindowTokens(int64_t blocks) {
  if (blocks >= PositionalPolicy::kUnlimited) return std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(blocks * kBlockTokens);
}

v1::KvFormat FormatOf(KvKind kind) {
  switch (kind) {
    case KvKind::kF16:
      return v1::KV_FORMAT_F16;
    case KvKind::kI4:
      return v1::KV_FORMAT_INT4;
    case KvKind::kI2:
      return v1::KV_FORMAT_INT2;
  }
  return v1::KV_FORMAT_UNSPECIFIED;
}

// The lowest precision in a tier; the values of KvFormat fall with precision.
v1::KvFormat LowestFormat(const std::vector<TensorKinds>& layers) {
  v1::KvFormat lowest = v1::KV_FORMAT_F16;
  for (const TensorKinds& kinds : layers) {
    lowest = std::max({lowest, FormatOf(kinds.k), FormatOf(kinds.v)});
  }
  return lowest;
}

v1::LinkUse UseOf(Link link, const LinkCounters& counters) {
  v1::LinkUse use;
  use.set_from(ToProto(EndsOf(link).from));
  use.set_to(ToProto(EndsOf(link).to));
  use.set_bytes(counters.bytes);
  use.set_bytes_f16_equivalent(counters.f16_bytes);
  use.set_pages(counters.pages);
  return use;
}

template <typename Bounds, typename Counts>
v1::Distribution DistributionOf(const Bounds& bounds, const Counts& counts, double sum) {
  v1::Distribution message;
  message.mutable_bounds()->Add(bounds.begin(), bounds.end());
  message.mutable_counts()->Add(counts.begin(), counts.end());
  message.set_sum_seconds(sum);
  return message;
}
v1::Distribution DistributionOf(const HistogramSnapshot& histogram) {
  return DistributionOf(histogram.bounds, histogram.counts, histogram.sum);
}

// Of the same buckets.
HistogramSnapshot Sum(HistogramSnapshot a, const HistogramSnapshot& b) {
  for (size_t i = 0; i < a.counts.size() && i < b.counts.size(); ++i) a.counts[i] += b.counts[i];
  a.sum += b.sum;
  return a;
}

v1::TierStats StatsOf(Tier tier, const CacheSnapshot& cache, const TierOptions& options) {
  const TierSnapshot& source = cache.tiers[static_cast<size_t>(tier)];
  v1::TierStats stats;
  stats.set_tier(ToProto(tier));
  stats.set_format(TierFormat(options, tier));
  stats.set_layout(TierFormatName(options, tier));
  stats.set_capacity_bytes(source.capacity_bytes);
  stats.set_used_bytes(source.used_bytes);
  stats.set_reserved_bytes(source.reserved_bytes);
  stats.set_tokens(source.tokens);
  stats.set_pages(source.pages);
  stats.set_free_pages(source.free_pages);
  stats.set_bits_per_value(source.bits_per_value);
  stats.set_lookups(source.lookups);
  stats.set_hits(source.hits);
  stats.set_bytes_f16_equivalent(source.f16_bytes);
  stats.set_k_relative_error(cache.k_relative_error[static_cast<size_t>(tier)]);
  stats.set_v_relative_error(cache.v_relative_error[static_cast<size_t>(tier)]);
  return stats;
}

void AddTotals(const EngineSnapshot& s, v1::CacheStats* message) {
  message->set_prompt_tokens(s.prompt_tokens);
  message->set_generation_tokens(s.generation_tokens);
  message->set_requests_finished(
      std::accumulate(s.finished.begin(), s.finished.end(), uint64_t{0}));
  message->set_requests_cancelled(s.cancelled);
  message->set_requests_failed(s.failed + s.deadline_exceeded);
  message->set_requests_rejected(s.rejected_queue_full + s.rejected_capacity +
                                 s.rejected_queue_timeout + s.rejected_invalid);
  message->set_recomputed_tokens(s.recomputed_tokens);
  const auto& failures = s.cache.integrity_failures;
  message->set_integrity_failures(std::accumulate(failures.begin(), failures.end(), uint64_t{0}));
  message->set_io_errors(s.cache.io_read_errors + s.cache.io_write_errors);
  message->set_refused_blocks(s.cache.refused_blocks);
  *message->mutable_time_to_first_token() = DistributionOf(s.time_to_first_token);
  *message->mutable_inter_token_latency() = DistributionOf(s.inter_token_latency);
  *message->mutable_fetch_wait() = DistributionOf(
      DurationHistogram::kBounds, s.cache.fetch_wait.counts, s.cache.fetch_wait.sum_seconds());
  *message->mutable_step() = DistributionOf(Sum(s.step_seconds_prefill, s.step_seconds_decode));
}

}  // namespace

v1::Tier ToProto(Tier tier) {
  switch (tier) {
    case Tier::kHot:
      return v1::TIER_HOT;
    case Tier::kWarm:
      return v1::TIER_WARM;
    case Tier::kCold:
      return v1::TIER_COLD;
  }
  return v1::TIER_UNSPECIFIED;
}

v1::KvFormat TierFormat(const TierOptions& options, Tier tier) {
  const auto kinds = ParseFormatName(TierFormatName(options, tier));
  return kinds.ok() && kinds->k == kinds->v ? FormatOf(kinds->k) : v1::KV_FORMAT_UNSPECIFIED;
}

v1::KvPolicy ToProto(const PositionalPolicy& policy, const TierOptions& options) {
  v1::KvPolicy message;
  message.set_sink_tokens(WindowTokens(policy.sink_blocks));
  message.set_recent_tokens(WindowTokens(policy.hot_blocks));
  const bool warm_used = policy.hot_blocks < PositionalPolicy::kUnlimited;
  const bool cold_used =
      warm_used && int64_t{policy.hot_blocks} + policy.warm_blocks < PositionalPolicy::kUnlimited;
  message.set_warm_tokens(warm_used ? WindowTokens(policy.warm_blocks) : 0);
  message.set_allow_cold(cold_used);
  message.set_min_format(cold_used   ? LowestFormat(options.formats.cold)
                         : warm_used ? LowestFormat(options.formats.warm)
                                     : v1::KV_FORMAT_F16);
  return message;
}

v1::KvUsage ToProto(const SequenceUsage& usage, int64_t recomputed_tokens,
                    const TierOptions& options) {
  v1::KvUsage message;
  for (const Tier tier : kTiers) {
    const auto i = static_cast<size_t>(tier);
    v1::TierUse* use = message.add_tiers();
    use->set_tier(ToProto(tier));
    use->set_format(TierFormat(options, tier));
    use->set_layout(TierFormatName(options, tier));
    use->set_tokens(static_cast<uint64_t>(usage.tokens[i]));
    use->set_pages(static_cast<uint64_t>(usage.pages[i]));
    use->set_bytes(usage.bytes[i]);
    use->set_peak_bytes(usage.peak_bytes[i]);
    use->set_bits_per_value(usage.bits_per_value[i]);
  }
  for (int i = 0; i < kLinkCount; ++i) {
    const Link link = static_cast<Link>(i);
    *message.add_links() = UseOf(link, usage.links[static_cast<size_t>(i)]);
    if (link == Link::kColdToHot) {
      *message.mutable_links(i)->mutable_wait() =
          TimeUtil::NanosecondsToDuration(usage.cold_wait.count());
    }
  }
  message.set_recomputed_tokens(static_cast<uint64_t>(recomputed_tokens));
  message.set_k_relative_error(usage.k_relative_error);
  message.set_v_relative_error(usage.v_relative_error);
  return message;
}

v1::CacheStats ToProto(const EngineSnapshot& snapshot, const TierOptions& options) {
  v1::CacheStats message;
  *message.mutable_time() = TimeUtil::GetCurrentTime();
  for (const Tier tier : kTiers) {
    *message.add_tiers() = StatsOf(tier, snapshot.cache, options);
  }
  for (int i = 0; i < kLinkCount; ++i) {
    *message.add_links() =
        UseOf(static_cast<Link>(i), snapshot.cache.links[static_cast<size_t>(i)]);
  }
  // Waits are counted for reading the cold tier alone.
  *message.mutable_links(static_cast<int>(Link::kColdToHot))->mutable_wait() =
      TimeUtil::NanosecondsToDuration(snapshot.cache.fetch_wait.sum.count());
  message.set_running(static_cast<uint32_t>(snapshot.running));
  message.set_waiting(static_cast<uint32_t>(snapshot.waiting));
  message.set_cold_degraded(snapshot.cache.cold_degraded);
  message.set_stalled(snapshot.stalled);
  AddTotals(snapshot, &message);
  return message;
}

}  // namespace strata::rpc
