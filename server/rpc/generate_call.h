#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "server/engine/request.h"
#include "server/rpc/event_writer.h"
#include "server/rpc/serving_state.h"
#include "server/rpc/work_queue.h"
#include "strata/v1/inference.pb.h"

namespace strata::rpc {

// What calls share; all of it outlives them.
struct CallEnvironment {
  ServingState* state = nullptr;
  const Clock* clock = nullptr;
  RequestDefaults defaults;
  WorkQueue* tokenizing = nullptr;  // prompts
  WorkQueue* delivery = nullptr;    // wake-ups of readers
};

// One generation between a reader (a gRPC reactor) and the engine: validates, tokenizes, submits,
// and keeps the engine's events until the reader takes them. Knows no gRPC.
//
// The engine's thread only appends: G1: it never waits for a reader. G2: what is kept is bounded by
// the request's own max_tokens, because deltas that were not taken are merged into one. G3: the
// reader gets Started, Delta..., Finished, Summary and then exactly one end. `wake` is called
// whenever there may be something to take, on the delivery thread unless its queue is full.
class GenerateCall final : public RequestSink,
                           public DrainedCall,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  enum class Taken { kNothing, kEvent, kEnd };

  GenerateCall(const CallEnvironment& environment, std::function<void()> wake);
  ~GenerateCall() override;  // leaves the state

  void Start(const v1::GenerateRequest& message, std::optional<Clock::TimePoint> deadline);
  // The client is gone.
  void Cancel();
  void Abort(const absl::Status& status) override;

  // The next event, or how the call ended.
  Taken Take(v1::GenerateEvent* event, absl::Status* end);
  // All events at once, when the call has ended.
  Taken TakeAll(v1::GenerateResult* result, absl::Status* end);
  // The reader is done: the drain need not wait for it any longer.
  void Leave();

  void OnStarted(const StartedEvent& event) override;
  void OnDelta(DeltaEvent event) override;
  void OnFinished(FinishedEvent event) override;
  void OnError(const absl::Status& status) override;
  void OnPrefill(int32_t done, int32_t total) override;

 private:
  struct Prefill {
    int32_t done = 0;
    int32_t total = 0;
  };
  struct Summary {
    FinishedEvent event;
  };
  // One thing for the reader; a status is the end.
  using Mail = std::variant<std::monostate, StartedEvent, Prefill, DeltaEvent, FinishedEvent,
                            Summary, absl::Status>;

  absl::Status Prepare(const v1::GenerateRequest& message,
                       std::optional<Clock::TimePoint> deadline);
  void TokenizeAndSubmit();
  void Submit();
  bool Cancelled();
  void End(const absl::Status& status);
  void Wake();
  Mail Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::GenerateEvent Write(const Mail& mail) const;

  const CallEnvironment environment_;
  const std::function<void()> wake_;
  std::atomic<bool> wake_posted_{false};

  // Set by Prepare, before any event; then read only.
  std::shared_ptr<const ServedModel> model_;
  std::optional<EventWriter> writer_;
  ParsedRequest parsed_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool entered_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> ticket_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> abort_status_ ABSL_GUARDED_BY(mutex_);
  // The mailbox, in the order it is emptied.
  std::optional<StartedEvent> started_ ABSL_GUARDED_BY(mutex_);
  std::optional<Prefill> prefill_ ABSL_GUARDED_BY(mutex_);
  std::optional<DeltaEvent> delta_ ABSL_GUARDED_BY(mutex_);
  std::optional<FinishedEvent> finished_ ABSL_GUARDED_BY(mutex_);
  std::optional<Summary> summary_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace strata::rpc
