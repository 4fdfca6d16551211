#include "server/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/engine_core.h"
#include "server/engine/scheduler.h"

namespace strata {
namespace {

// While requests wait for memory that nobody running holds (the mover or the disk still reads it),
// and while a released cache comes to rest: pauses between polls.
constexpr std::chrono::milliseconds kWaitingPause{2};
constexpr std::chrono::milliseconds kIdlePauseMax{1000};

// The loop's thread and the inbox in front of it.
class ThreadedEngine final : public Engine {
 public:
  ThreadedEngine(const EngineOptions& options, PositionalPolicy default_policy, Model* model,
                 std::unique_ptr<TieredCache> cache, const Clock* clock, ThreadPool* pool)
      : options_(options),
        default_policy_(default_policy),
        cache_(std::move(cache)),
        clock_(clock),
        core_({.options = options_,
               .default_policy = default_policy_,
               .model = model,
               .cache = cache_.get(),
               .clock = clock,
               .pool = pool,
               .gauges = &gauges_,
               .publish =
                   [this](std::shared_ptr<const EngineSnapshot> snapshot) {
                     std::lock_guard lock(snapshot_mutex_);
                     snapshot_ = std::move(snapshot);
                   }}),
        thread_([this] { Loop(); }) {}

  ~ThreadedEngine() override {
    Post([](Inbox* inbox) { inbox->stop = true; });
    thread_.join();
  }

  uint64_t Submit(Request request, std::shared_ptr<RequestSink> sink) override {
    EngineCore::Submission submission;
    submission.ticket = next_ticket_.fetch_add(1, std::memory_order_relaxed);
    submission.sink = std::move(sink);
    // A loop that rests has made no progress lately; that is no stall.
    if (gauges_.in_flight.fetch_add(1, std::memory_order_relaxed) == 0) NoteProgress();
    if (gauges_.waiting.fetch_add(1, std::memory_order_relaxed) < options_.queue_max) {
      submission.request = std::move(request);
    } else {
      gauges_.waiting.fetch_sub(1, std::memory_order_relaxed);
      submission.refusal = absl::ResourceExhaustedError(
          absl::StrCat(kQueueFull, ": ", options_.queue_max, " requests are waiting"));
    }
    const uint64_t ticket = submission.ticket;
    Post([&](Inbox* inbox) { inbox->submissions.push_back(std::move(submission)); });
    return ticket;
  }

  void Cancel(uint64_t ticket) override {
    Post([&](Inbox* inbox) { inbox->cancels.push_back(ticket); });
  }

  std::shared_ptr<const EngineSnapshot> Snapshot() const override {
    std::shared_ptr<const EngineSnapshot> snapshot;
    {
      std::lock_guard lock(snapshot_mutex_);
      snapshot = snapshot_;
    }
    if (!Stalled()) return snapshot;
    auto stalled = std::make_shared<EngineSnapshot>(*snapshot);
    stalled->stalled = true;
    return stalled;
  }

  const EngineOptions& options() const override { return options_; }
  const TierOptions& tier_options() const override { return cache_->options(); }
  const PositionalPolicy& default_policy() const override { return default_policy_; }
  int64_t InFlight() const override { return gauges_.in_flight.load(std::memory_order_acquire); }

 private:
  struct Inbox {
    std::vector<EngineCore::Submission> submissions;
    std::vector<uint64_t> cancels;
    bool stop = false;
    bool empty() const { return submissions.empty() && cancels.empty() && !stop; }
  };

  template <typename Change>
  void Post(const Change& change) {
    {
      std::lock_guard lock(inbox_mutex_);
      change(&inbox_);
    }
    inbox_filled_.notify_one();
  }

  void NoteProgress() {
    gauges_.progress_ns.store(clock_->Now().time_since_epoch() / std::chrono::nanoseconds(1),
                              std::memory_order_relaxed);
  }

  // Judged by the reader, because a loop that hangs cannot.
  bool Stalled() const {
    if (gauges_.in_flight.load(std::memory_order_relaxed) == 0) return false;
    const std::chrono::nanoseconds last(gauges_.progress_ns.load(std::memory_order_relaxed));
    return clock_->Now().time_since_epoch() - last >= options_.stall_after;
  }

  void Loop() {
    std::chrono::milliseconds idle_pause = kWaitingPause;
    while (true) {
      const bool stop = TakeInbox();
      if (stop) return core_.CancelAll();
      switch (core_.RunTurn()) {
        case EngineCore::Turn::kStepped:
          idle_pause = kWaitingPause;
          break;
        case EngineCore::Turn::kWaiting:
          AwaitInbox(kWaitingPause);
          break;
        case EngineCore::Turn::kIdle:
          if (core_.CacheAtRest()) {
            AwaitInbox(std::nullopt);
          } else {
            AwaitInbox(idle_pause);
            idle_pause = std::min(2 * idle_pause, kIdlePauseMax);
          }
          break;
      }
    }
  }

  // Whether the engine is to stop.
  bool TakeInbox() {
    Inbox inbox;
    {
      std::lock_guard lock(inbox_mutex_);
      std::swap(inbox, inbox_);
    }
    // Submissions first: a cancel may follow its request closely.
    for (EngineCore::Submission& submission : inbox.submissions) {
      core_.Submit(std::move(submission));
    }
    for (const uint64_t ticket : inbox.cancels) core_.Cancel(ticket);
    return inbox.stop;
  }

  void AwaitInbox(std::optional<std::chrono::milliseconds> timeout) {
    std::unique_lock lock(inbox_mutex_);
    const auto filled = [this] { return !inbox_.empty(); };
    if (timeout.has_value()) {
      inbox_filled_.wait_for(lock, *timeout, filled);
    } else {
      inbox_filled_.wait(lock, filled);
    }
  }

  const EngineOptions options_;
  const PositionalPolicy default_policy_;
  const std::unique_ptr<TieredCache> cache_;
  const Clock* const clock_;
  EngineGauges gauges_;
  std::atomic<uint64_t> next_ticket_{1};

  mutable std::mutex snapshot_mutex_;
  std::shared_ptr<const EngineSnapshot> snapshot_;  // under snapshot_mutex_
  std::mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  Inbox inbox_;  // under inbox_mutex_

  EngineCore core_;     // engine thread, once that runs
  std::thread thread_;  // last: it uses all the others
};

absl::Status CheckOptions(const EngineOptions& options, const Model& model,
                          const TierOptions& tiers) {
  if (options.queue_max < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue_max is ", options.queue_max, ", must be at least 1"));
  }
  if (options.max_context < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_context is ", options.max_context, ", must not be negative"));
  }
  if (options.recomputes_max < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("recomputes_max is ", options.recomputes_max, ", must not be negative"));
  }
  if (options.max_sequences > tiers.max_sequences) {
    return absl::InvalidArgumentError(absl::StrCat("max_sequences is ", options.max_sequences,
                                                   ", but the cache admits at most ",
                                                   tiers.max_sequences));
  }
  if (!(model.config().Geometry() == tiers.geometry)) {
    return absl::InvalidArgumentError("the cache was made for a model of another shape");
  }
  return LimitsOf(options, tiers).Validate();
}

int32_t ContextMax(const EngineOptions& options, const Model& model, const TierOptions& tiers) {
  int32_t context = model.config().context_length;
  for (const int32_t limit : {options.max_context, tiers.max_context}) {
    if (limit > 0) context = std::min(context, limit);
  }
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options, Model* model,
                                                       std::unique_ptr<TieredCache> cache,
                                                       const Clock* clock, ThreadPool* pool) {
  STRATA_RETURN_IF_ERROR(CheckOptions(options, *model, cache->options()));
  EngineOptions resolved = options;
  resolved.max_context = ContextMax(options, *model, cache->options());
  const PositionalPolicy policy = options.default_policy.has_value()
                                      ? *options.default_policy
                                      : TieredCache::DefaultPolicy(cache->options());
  return std::make_unique<ThreadedEngine>(resolved, policy, model, std::move(cache), clock, pool);
}

}  // namespace strata
