#pragma once

#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "server/engine/request.h"

namespace strata {

// Keeps every event and CHECKs their order (E1). Fields may be read once AwaitEnd() returned, or on
// the thread that delivers.
class RecordingSink : public RequestSink {
 public:
  void OnStarted(const StartedEvent& event) override {
    NoteCall();
    STRATA_CHECK(!started.has_value() && deltas == 0);
    started = event;
  }
  void OnDelta(DeltaEvent event) override {
    NoteCall();
    STRATA_CHECK(started.has_value() && !event.token_ids.empty());
    STRATA_CHECK(event.token_ids.size() == event.tokens.size());
    ++deltas;
    text += event.text;
    tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
    sampled.insert(sampled.end(), event.tokens.begin(), event.tokens.end());
    STRATA_CHECK(event.completion_tokens == static_cast<int32_t>(tokens.size()));
  }
  void OnFinished(FinishedEvent event) override {
    NoteCall();
    STRATA_CHECK(started.has_value());
    text += event.text_tail;
    finished = std::move(event);
    End();
  }
  void OnError(const absl::Status& status) override {
    NoteCall();
    STRATA_CHECK(!status.ok());
    error = status;
    End();
  }
  void OnPrefill(int32_t done, int32_t total) override {
    NoteCall();
    STRATA_CHECK(started.has_value() && deltas == 0);
    STRATA_CHECK(done > prefill_done && done <= total);
    prefill_done = done;
    ++prefill_calls;
  }

  std::optional<StartedEvent> started;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<SampledToken> sampled;
  int32_t deltas = 0;
  int32_t prefill_done = 0;
  int32_t prefill_calls = 0;
  std::optional<FinishedEvent> finished;
  absl::Status error;
  std::thread::id thread;  // that made every call

  bool ended() const { return ended_.try_wait(); }
  void AwaitEnd() const { ended_.wait(); }

 private:
  void NoteCall() {
    STRATA_CHECK(!ended());
    if (thread == std::thread::id()) thread = std::this_thread::get_id();
    STRATA_CHECK(thread == std::this_thread::get_id());
  }
  void End() { ended_.count_down(); }

  // Not absl's: ThreadSanitizer cannot see into a prebuilt library.
  std::latch ended_{1};
};

}  // namespace strata
