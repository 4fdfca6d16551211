#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/v1/inference.pb.h"

namespace strata::cli {

// What is wrong, in words.
struct TopProblem {
  bool bad = false;  // else only worth a look
  std::string text;
};

// The numbers of one frame of `strata top`. Rates are a second, shares of one.
struct TopView {
  struct Tier {
    std::string name, layout;
    uint64_t used = 0, reserved = 0, capacity = 0, f16_bytes = 0, tokens = 0;
    double bits_per_value = 0, k_error = 0, v_error = 0;
  };
  struct Link {
    std::string from, to;
    double rate = 0, f16_rate = 0;  // bytes
    uint64_t bytes = 0, f16_bytes = 0;
  };
  struct Latency {
    std::optional<double> median, p95;  // seconds; none when nothing was counted lately
  };

  std::string server, model;
  std::string lost;  // why there is no connection; empty: there is one
  std::vector<Tier> tiers;
  std::vector<Link> links;
  uint32_t running = 0, waiting = 0;
  uint64_t finished = 0, cancelled = 0, failed = 0, rejected = 0;
  double generated_rate = 0, prompt_rate = 0;  // tokens
  Latency first_token, between_tokens;
  double wait_share = 0;                                           // of step time, for cold pages
  std::vector<double> generated_rates, prompt_rates, wait_shares;  // oldest first
  std::optional<double> staged_share;  // of cold pages wanted: found in memory
  bool has_cold = false, degraded = false;
  uint64_t io_errors = 0, damaged_records = 0, recomputed_tokens = 0, refused_blocks = 0;
  std::vector<TopProblem> problems;  // worst first
};

// The reports of the last two minutes or so. Not thread-safe.
class StatsHistory {
 public:
  // A server that was started anew begins a new history.
  void Add(v1::CacheStats stats);
  bool empty() const { return reports_.empty(); }
  size_t size() const { return reports_.size(); }
  // Not while empty.
  TopView View(const std::string& server) const;

 private:
  using Field = std::function<double(const v1::CacheStats&)>;
  static constexpr size_t kReportsMax = 120;

  // Growth a second of a counter, over the five reports up to `at`.
  double Rate(size_t at, const Field& field) const;
  std::vector<double> Rates(const Field& field) const;
  double WaitShare(size_t at) const;
  double Lately(const Field& field) const;
  std::vector<TopProblem> Problems() const;

  std::deque<v1::CacheStats> reports_;
};

// The q-quantile (0 to 1) of what was counted from `before` to `after`, linear within a bucket; in
// the unbounded bucket its lower bound. None when nothing was counted.
std::optional<double> Quantile(const v1::Distribution& before, const v1::Distribution& after,
                               double q);

}  // namespace strata::cli
