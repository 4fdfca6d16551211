#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "model/model.h"
#include "server/engine/request.h"
#include "tiering/tiered_cache.h"

namespace strata {

struct EngineOptions {
  int32_t max_sequences = 16;      // running at once
  int32_t queue_max = 256;         // waiting; more are refused with RESOURCE_EXHAUSTED
  int32_t max_batch_tokens = 320;  // rows of one step, >= piece_tokens + max_sequences - 1
  int32_t max_context = 0;         // tokens a sequence, at most the model's
  // Windows of requests that ask for none; absent: what the budgets buy
  // (TieredCache::DefaultPolicy).
  std::optional<PositionalPolicy> default_policy;
  int32_t recomputes_max = 4;            // of one request, after damaged records; then DATA_LOSS
  std::chrono::seconds stall_after{30};  // work and no step for so long is a stall
};

// Fixed-bucket histogram: counts a bucket (not cumulative), the last one unbounded.
struct HistogramSnapshot {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;  // bounds.size() + 1
  double sum = 0;
};

// Everything the metrics show of the engine; an immutable copy is published each step.
struct EngineSnapshot {
  CacheSnapshot cache;
  uint64_t running = 0;
  uint64_t waiting = 0;
  std::array<uint64_t, 5> finished{};  // by FinishReason
  uint64_t cancelled = 0;
  uint64_t deadline_exceeded = 0;
  uint64_t failed = 0;  // INTERNAL, DATA_LOSS
  uint64_t rejected_queue_full = 0;
  uint64_t rejected_capacity = 0;
  uint64_t rejected_queue_timeout = 0;
  uint64_t rejected_invalid = 0;  // INVALID_ARGUMENT
  uint64_t prompt_tokens = 0;
  uint64_t generation_tokens = 0;
  uint64_t recomputed_tokens = 0;
  uint64_t steps = 0;
  HistogramSnapshot time_to_first_token, inter_token_latency, request_duration, request_queue,
      request_prefill, request_decode, step_seconds_prefill, step_seconds_decode, step_batch_tokens;
  bool stalled = false;  // work queued but no step for a long time
};

// Runs requests: one loop on one thread of its own that owns cache, scheduler and sequences.
class Engine {
 public:
  // Everything borrowed must outlive the engine. `pool`: the backend's, idle between forward
  // passes; null where it has none.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options, Model* model,
                                                        std::unique_ptr<TieredCache> cache,
                                                        const Clock* clock,
                                                        ThreadPool* pool = nullptr);
  virtual ~Engine() = default;  // cancels what still runs

  // Any thread. Queues the request; returns a ticket for Cancel. The sink gets every outcome, on
  // the engine thread, refusals included (possibly before Submit returns); it is kept alive until
  // its terminal event. The caller bounds how many refused requests it has outstanding.
  virtual uint64_t Submit(Request request, std::shared_ptr<RequestSink> sink) = 0;
  // Any thread. The request ends with CANCELLED within one step, wherever it is; unknown tickets
  // and finished requests are ignored.
  virtual void Cancel(uint64_t ticket) = 0;

  // Any thread; never null.
  virtual std::shared_ptr<const EngineSnapshot> Snapshot() const = 0;
  // With max_context resolved: the least of the option, the model's and the tiers'.
  virtual const EngineOptions& options() const = 0;
  virtual const TierOptions& tier_options() const = 0;
  virtual const PositionalPolicy& default_policy() const = 0;
  // Requests running or waiting, for the drain. Any thread.
  virtual int64_t InFlight() const = 0;
};

}  // namespace strata
