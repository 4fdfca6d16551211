#include "tools/cli/top_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/time_util.h"

namespace strata::cli {
namespace {

using google::protobuf::util::TimeUtil;

constexpr size_t kRateReports = 5;
// Steps that wait longer than this part of their time make the disk a problem.
constexpr double kWaitShareMax = 0.3;

std::string NameOf(v1::Tier tier) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Tier_Name(tier), "TIER_"));
}

double SecondsBetween(const v1::CacheStats& from, const v1::CacheStats& to) {
  return static_cast<double>(TimeUtil::DurationToNanoseconds(to.time() - from.time())) * 1e-9;
}

const v1::TierStats& ColdOf(const v1::CacheStats& stats) {
  return stats.tiers(stats.tiers_size() - 1);
}

// No room for another request worth the name.
bool IsFull(const v1::TierStats& tier) {
  return tier.capacity_bytes() > 0 &&
         tier.reserved_bytes() + tier.capacity_bytes() / 20 > tier.capacity_bytes();
}

TopView::Tier TierOf(const v1::TierStats& tier) {
  TopView::Tier view;
  view.name = NameOf(tier.tier());
  view.layout = tier.layout();
  view.used = tier.used_bytes();
  view.reserved = std::max(tier.reserved_bytes(), tier.used_bytes());
  view.capacity = tier.capacity_bytes();
  view.f16_bytes = tier.bytes_f16_equivalent();
  view.tokens = tier.tokens();
  view.bits_per_value = tier.bits_per_value();
  view.k_error = tier.k_relative_error();
  view.v_error = tier.v_relative_error();
  return view;
}

}  // namespace

std::optional<double> Quantile(const v1::Distribution& before, const v1::Distribution& after,
                               double q) {
  std::vector<double> counts;
  double total = 0;
  for (int i = 0; i < after.counts_size(); ++i) {
    const uint64_t earlier = i < before.counts_size() ? before.counts(i) : 0;
    counts.push_back(static_cast<double>(after.counts(i) - std::min(earlier, after.counts(i))));
    total += counts.back();
  }
  if (total == 0) return std::nullopt;
  double left = q * total;
  for (int i = 0; i < after.counts_size(); ++i) {
    const double in_bucket = counts[static_cast<size_t>(i)];
    if (in_bucket > 0 && left <= in_bucket) {
      const double low = i > 0 ? after.bounds(i - 1) : 0;
      const double high = i < after.bounds_size() ? after.bounds(i) : low;
      return low + (high - low) * left / in_bucket;
    }
    left -= in_bucket;
  }
  return after.bounds_size() > 0 ? after.bounds(after.bounds_size() - 1) : 0;
}

void StatsHistory::Add(v1::CacheStats stats) {
  const bool restarted =
      !reports_.empty() && (stats.generation_tokens() < reports_.back().generation_tokens() ||
                            stats.prompt_tokens() < reports_.back().prompt_tokens());
  if (restarted) reports_.clear();
  reports_.push_back(std::move(stats));
  if (reports_.size() > kReportsMax) reports_.pop_front();
}

double StatsHistory::Rate(size_t at, const Field& field) const {
  const v1::CacheStats& from = reports_[at - std::min(at, kRateReports)];
  const double seconds = SecondsBetween(from, reports_[at]);
  return seconds > 0 ? (field(reports_[at]) - field(from)) / seconds : 0;
}

std::vector<double> StatsHistory::Rates(const Field& field) const {
  std::vector<double> rates;
  for (size_t i = 0; i < reports_.size(); ++i) rates.push_back(Rate(i, field));
  return rates;
}

double StatsHistory::WaitShare(size_t at) const {
  const double steps = Rate(at, [](const v1::CacheStats& s) { return s.step().sum_seconds(); });
  const double waits =
      Rate(at, [](const v1::CacheStats& s) { return s.fetch_wait().sum_seconds(); });
  return steps > 0 ? waits / steps : 0;
}

double StatsHistory::Lately(const Field& field) const {
  return field(reports_.back()) - field(reports_.front());
}

std::vector<TopProblem> StatsHistory::Problems() const {
  const v1::CacheStats& now = reports_.back();
  std::vector<TopProblem> found;
  const auto say = [&found](bool when, bool bad, std::string text) {
    if (when) found.push_back({bad, std::move(text)});
  };
  const auto lately = [&](const char* what, const Field& field) {
    const double grown = Lately(field);
    say(grown > 0, true, absl::StrCat(static_cast<uint64_t>(grown), " ", what, " lately"));
  };
  say(now.stalled(), true, "the engine has work but makes no step");
  say(now.cold_degraded(), true, "the disk fails, hangs or is full: blocks stay in the warm tier");
  lately("damaged records read", [](const auto& s) { return double(s.integrity_failures()); });
  lately("failed reads or writes", [](const auto& s) { return double(s.io_errors()); });
  lately("requests failed", [](const auto& s) { return double(s.requests_failed()); });
  std::vector<std::string> full;
  for (const v1::TierStats& tier : now.tiers()) {
    if (IsFull(tier)) full.push_back(NameOf(tier.tier()));
  }
  say(now.waiting() > 0 && !full.empty(), false,
      absl::StrCat(now.waiting(),
                   " requests wait: promised to others already: ", absl::StrJoin(full, ", ")));
  say(WaitShare(reports_.size() - 1) > kWaitShareMax, false,
      "steps spend more than 30 % of their time waiting for the disk");
  const double rejected = Lately([](const auto& s) { return double(s.requests_rejected()); });
  say(rejected > 0, false,
      absl::StrCat(static_cast<uint64_t>(rejected), " requests refused lately"));
  return found;
}

TopView StatsHistory::View(const std::string& server) const {
  const v1::CacheStats& first = reports_.front();
  const v1::CacheStats& now = reports_.back();
  const size_t at = reports_.size() - 1;
  const Field generated = [](const auto& s) { return double(s.generation_tokens()); };
  const Field prompt = [](const auto& s) { return double(s.prompt_tokens()); };
  TopView view;
  view.server = server;
  view.model = now.model();
  for (const v1::TierStats& tier : now.tiers()) view.tiers.push_back(TierOf(tier));
  for (int i = 0; i < now.links_size(); ++i) {
    const v1::LinkUse& link = now.links(i);
    view.links.push_back(
        {NameOf(link.from()), NameOf(link.to()),
         Rate(at, [i](const auto& s) { return double(s.links(i).bytes()); }),
         Rate(at, [i](const auto& s) { return double(s.links(i).bytes_f16_equivalent()); }),
         link.bytes(), link.bytes_f16_equivalent()});
  }
  view.running = now.running();
  view.waiting = now.waiting();
  view.finished = now.requests_finished();
  view.cancelled = now.requests_cancelled();
  view.failed = now.requests_failed();
  view.rejected = now.requests_rejected();
  view.generated_rates = Rates(generated);
  view.prompt_rates = Rates(prompt);
  view.generated_rate = view.generated_rates.back();
  view.prompt_rate = view.prompt_rates.back();
  const auto latency = [](const v1::Distribution& before, const v1::Distribution& after) {
    return TopView::Latency{Quantile(before, after, 0.5), Quantile(before, after, 0.95)};
  };
  view.first_token = latency(first.time_to_first_token(), now.time_to_first_token());
  view.between_tokens = latency(first.inter_token_latency(), now.inter_token_latency());
  for (size_t i = 0; i < reports_.size(); ++i) view.wait_shares.push_back(WaitShare(i));
  view.wait_share = view.wait_shares.back();
  if (now.tiers_size() > 0 && first.tiers_size() == now.tiers_size()) {
    const auto wanted = static_cast<double>(ColdOf(now).lookups() - ColdOf(first).lookups());
    const auto found = static_cast<double>(ColdOf(now).hits() - ColdOf(first).hits());
    if (wanted > 0) view.staged_share = found / wanted;
    view.has_cold = ColdOf(now).capacity_bytes() > 0;
  }
  view.degraded = now.cold_degraded();
  view.io_errors = now.io_errors();
  view.damaged_records = now.integrity_failures();
  view.recomputed_tokens = now.recomputed_tokens();
  view.refused_blocks = now.refused_blocks();
  view.problems = Problems();
  return view;
}

}  // namespace strata::cli
