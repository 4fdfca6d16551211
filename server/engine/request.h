#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "model/sampler.h"
#include "tiering/kv_policy.h"
#include "tiering/tiered_cache.h"

namespace strata {

// Refusals that clients tell apart begin with one of these words, then ": " and the figures.
inline constexpr char kContextLengthExceeded[] = "CONTEXT_LENGTH_EXCEEDED";  // INVALID_ARGUMENT
inline constexpr char kQueueFull[] = "QUEUE_FULL";                           // RESOURCE_EXHAUSTED
inline constexpr char kQueueTimeout[] = "QUEUE_TIMEOUT";                     // RESOURCE_EXHAUSTED
inline constexpr char kKvCapacity[] = "KV_CAPACITY";  // RESOURCE_EXHAUSTED: can never fit

enum class FinishReason : uint8_t { kEos, kStop, kLength, kContext, kTimeLimit };

enum class PolicyPreset : uint8_t { kDefault, kExact, kBalanced, kCompact };

// A request's demand on precision (tiering.md §3); the engine turns it into a PositionalPolicy.
struct PolicyRequest {
  PolicyPreset preset = PolicyPreset::kDefault;
  std::optional<KvKind> min_format = std::nullopt;  // nothing may be read below it
  std::optional<int32_t> sink_tokens = std::nullopt;
  std::optional<int32_t> recent_tokens = std::nullopt;  // F16 window
  std::optional<bool> allow_cold = std::nullopt;
};

struct StopCriteria {
  int32_t max_tokens = 0;  // > 0
  // Before so many, EOS and stop_token_ids are not drawn and stop strings do not stop; at most
  // max_tokens.
  int32_t min_tokens = 0;
  std::vector<std::string> stop;  // StopSet::Check; needs detokenize
  std::vector<int32_t> stop_token_ids;
  bool include_stop = false;
  bool ignore_eos = false;
  std::optional<std::chrono::nanoseconds> time_limit;  // from admission; reason TIME_LIMIT
};

// A request as the RPC layer hands it over. The engine checks it against model and tiers.
struct Request {
  std::string id;
  std::vector<int32_t> prompt;  // not empty
  uint32_t choice = 0;          // which of n, for the sampler's generator
  SamplingParams sampling;
  StopCriteria stop;
  PolicyRequest policy;
  bool skip_special_tokens = true;
  bool detokenize = true;
  bool logprobs = true;                            // of the tokens drawn; else they are 0
  int32_t stream_interval = 1;                     // tokens a Delta, at least
  std::optional<Clock::TimePoint> deadline;        // DEADLINE_EXCEEDED after it
  std::optional<Clock::TimePoint> queue_deadline;  // RESOURCE_EXHAUSTED if still waiting then
  Clock::TimePoint received{};                     // not set: when it was submitted
};

struct StartedEvent {
  int32_t prompt_tokens = 0;
  PositionalPolicy policy;  // effective
};
struct DeltaEvent {
  std::string text;                  // whole UTF-8, nothing that may become a stop string
  std::vector<int32_t> token_ids;    // the EOS or stop token included
  std::vector<SampledToken> tokens;  // with raw log probabilities
  int32_t completion_tokens = 0;     // so far
};
struct RequestTiming {
  std::chrono::nanoseconds queued{0}, prefill{0}, time_to_first_token{0}, decode{0};
};
struct FinishedEvent {
  FinishReason reason = FinishReason::kLength;
  std::string text_tail;  // text held back until now
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token_id;
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int64_t recomputed_tokens = 0;  // computed again after a damaged record
  SequenceUsage usage;            // at the last step
  RequestTiming timing;
};

// Receives one request's events in order: OnStarted, OnDelta..., then exactly one of OnFinished and
// OnError (E1). Always called on the engine thread, refusals too: must not block, but may cancel.
// A request refused before it started gets only OnError. Whoever got the terminal event
// finds it counted in Engine::Snapshot().
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void OnStarted(const StartedEvent& event) = 0;
  virtual void OnDelta(DeltaEvent event) = 0;
  virtual void OnFinished(FinishedEvent event) = 0;
  virtual void OnError(const absl::Status& status) = 0;
  // Prefill progress, at most once a step; tokens computed of the prompt.
  virtual void OnPrefill(int32_t done, int32_t total) {}
};

}  // namespace strata
