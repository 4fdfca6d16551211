#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "model/sampler.h"
#include "model/tokenizer.h"
#include "server/engine/request.h"
#include "server/engine/request_terms.h"
#include "server/engine/text_stream.h"
#include "tiering/tiered_cache.h"

namespace strata {

// One request from its arrival to its terminal event: its tokens, how many of them the cache holds,
// and the output on its way to the client. Owned by the engine loop; engine thread only.
//
// Q1: 0 <= computed() <= known(); known() grows by Accept alone.
// Q2: a token is in exactly one delta, and text in a delta or the tail.
// Q3: after Accept returned a reason nothing more is accepted.
class Sequence {
 public:
  Sequence(uint64_t ticket, Request request, RequestTerms terms, std::shared_ptr<RequestSink> sink,
           const Tokenizer* tokenizer);

  uint64_t ticket() const { return ticket_; }
  const Request& request() const { return request_; }
  const RequestTerms& terms() const { return terms_; }
  RequestSink& sink() { return *sink_; }

  // --- Tokens and how far the cache is.
  int32_t prompt_tokens() const { return static_cast<int32_t>(request_.prompt.size()); }
  int32_t known() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t generated() const { return known() - prompt_tokens(); }
  int32_t computed() const { return computed_; }
  int32_t recomputed() const { return recomputed_; }
  int32_t restarts() const { return restarts_; }
  // Only the token sampled last is missing from the cache.
  bool decoding() const { return generated() > 0 && computed_ + 1 == known(); }
  absl::Span<const int32_t> tokens() const { return tokens_; }

  // `tokens` more are in the cache. Returns how many of them are prompt tokens that never were.
  int32_t Advance(int32_t tokens);
  // The cache lost the content; everything known is computed again from position 0.
  void Restart();

  // --- Output.
  SamplingState sampling_state() const;
  // Takes the next token. A reason means that generation ends with it.
  std::optional<FinishReason> Accept(const SampledToken& token);
  bool DeltaDue() const;
  bool HasPendingTokens() const { return !pending_.token_ids.empty(); }
  DeltaEvent TakeDelta();
  // Text, stop and token counts; the engine adds usage and timing.
  FinishedEvent Finish(FinishReason reason);

  // --- Written by the engine loop alone.
  struct Progress {
    SequenceHandle handle = 0;  // valid while running
    int32_t overtaken = 0;      // while waiting
    uint64_t last_step = 0;     // planned last
    int32_t prefill_reported = 0;
    Clock::TimePoint admitted, first_token, last_token;
  };
  Progress progress;

 private:
  std::optional<FinishReason> EndingOf(int32_t id);
  void PushText(int32_t id);

  const uint64_t ticket_;
  Request request_;
  RequestTerms terms_;
  std::shared_ptr<RequestSink> sink_;  // shared with the call that waits for it
  const Tokenizer* tokenizer_;

  std::vector<int32_t> tokens_;  // prompt, then generated
  int32_t computed_ = 0;
  int32_t computed_peak_ = 0;
  int32_t recomputed_ = 0;
  int32_t restarts_ = 0;

  TextStream text_;
  DeltaEvent pending_;
  std::optional<std::string> stop_string_;
  std::optional<int32_t> stop_token_id_;
};

}  // namespace strata
