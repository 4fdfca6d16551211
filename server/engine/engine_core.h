#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/model.h"
#include "model/sampler.h"
#include "server/engine/engine.h"
#include "server/engine/request_terms.h"
#include "server/engine/scheduler.h"
#include "server/engine/sequence.h"
#include "server/engine/step_batch.h"
#include "server/engine/step_sampler.h"
#include "tiering/tiered_cache.h"

namespace strata {

// What other threads may read of the loop at any time.
struct EngineGauges {
  std::atomic<int64_t> in_flight{0};    // submitted, terminal event not delivered
  std::atomic<int64_t> waiting{0};      // submitted, neither admitted nor ended
  std::atomic<int64_t> progress_ns{0};  // clock's time of the last step, or of the last idleness
};

SchedulerLimits LimitsOf(const EngineOptions& options, const TierOptions& tiers);

// The engine's loop body, without thread and queue, so that tests can turn it step by step. All
// methods on one thread, the engine thread. A turn is: poll the cache -> expire -> admit -> plan ->
// PrepareStep -> Forward -> sample -> publish -> deliver.
//
// E1: every submission gets exactly one terminal event. E2: a cancelled or expired request has
// freed its blocks when the next turn plans, wherever it was. E3: terminal events are delivered
// after the snapshot that counts them was published.
class EngineCore {
 public:
  struct Submission {
    uint64_t ticket = 0;
    Request request;
    std::shared_ptr<RequestSink> sink;
    absl::Status refusal;  // not OK: already refused, and not counted as waiting
  };
  // Receives each snapshot, on the engine thread.
  using Publisher = std::function<void(std::shared_ptr<const EngineSnapshot>)>;

  struct Parts {
    EngineOptions options;  // max_context resolved
    PositionalPolicy default_policy;
    Model* model = nullptr;
    TieredCache* cache = nullptr;
    const Clock* clock = nullptr;
    ThreadPool* pool = nullptr;  // for sampling; may be null
    EngineGauges* gauges = nullptr;
    Publisher publish;
  };
  explicit EngineCore(Parts parts);
  ~EngineCore();

  void Submit(Submission submission);
  void Cancel(uint64_t ticket);
  // Ends everything; the terminal events are delivered before it returns.
  void CancelAll();

  enum class Turn {
    kStepped,  // there may be more to do at once
    kWaiting,  // requests wait for memory that others still hold
    kIdle,     // no requests
  };
  Turn RunTurn();

  // Whether the cache has come to rest: nothing held, nothing in flight. Otherwise a turn now and
  // then keeps the snapshot true, although there are no requests.
  bool CacheAtRest() const;
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }

 private:
  using Owned = std::unique_ptr<Sequence>;
  // A terminal event, kept until the snapshot is out (E3).
  struct Ending {
    Owned sequence;  // null for a submission that was refused
    std::shared_ptr<RequestSink> sink;
    std::optional<FinishedEvent> finished;
    absl::Status error;
  };
  struct PlannedTokens {
    Sequence* sequence = nullptr;
    int32_t tokens = 0;
  };

  // Ending requests.
  void Refuse(std::shared_ptr<RequestSink> sink, absl::Status status);
  void Finish(Sequence* sequence, FinishReason reason);
  void Fail(Sequence* sequence, absl::Status status);
  void End(Sequence* sequence, std::optional<FinishedEvent> finished, absl::Status error);
  void CountRefusal(const absl::Status& status);
  bool IsRunning(const Sequence* sequence) const;
  Sequence* FindRunning(SequenceHandle handle) const;
  void DeliverEndings();

  // One turn.
  void Expire();
  void Admit();
  // Whether waiter `index` left the queue: admitted, or because it can never fit.
  bool TryAdmit(size_t index);
  void Start(Owned sequence, SequenceHandle handle);
  bool RunStep();
  void Execute();
  void Recover(const absl::Status& status);
  // Ends the sequence that the error names, else every sequence of the step.
  void FailStep(const absl::Status& status);
  void Restart(Sequence* sequence, const absl::Status& cause);
  void TakeResults(Clock::TimePoint started);
  void ReportPrefill(Sequence* sequence);
  void TakeToken(Sequence* sequence, const SampledToken& token, Clock::TimePoint now);
  void Publish();

  const EngineOptions options_;
  Model* const model_;
  TieredCache* const cache_;
  const Clock* const clock_;
  EngineGauges* const gauges_;
  const Publisher publish_;
  const SchedulerLimits limits_;
  TermsContext terms_;
  CacheSnapshot empty_cache_;  // what the tiers hold at most

  std::vector<Owned> waiting_;  // in order of arrival
  std::vector<Owned> running_;  // in order of admission
  std::vector<Ending> endings_;
  EngineSnapshot totals_;
  bool changed_ = true;  // something to publish
  uint64_t step_ = 0;

  // Of the step being run; kept for their memory.
  std::vector<WaiterView> waiter_views_;
  std::vector<RunningView> running_views_;
  StepPlan plan_;
  std::vector<PlannedTokens> planned_;
  StepBatch batch_;
  StepSampler sampler_;
};

}  // namespace strata
