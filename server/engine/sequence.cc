#include "server/engine/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace strata {

Sequence::Sequence(uint64_t ticket, Request request, RequestTerms terms,
                   std::shared_ptr<RequestSink> sink, const Tokenizer* tokenizer)
    : ticket_(ticket),
      request_(std::move(request)),
      terms_(std::move(terms)),
      sink_(std::move(sink)),
      tokenizer_(tokenizer),
      tokens_(request_.prompt),
      text_(tokenizer, {.stop = request_.stop.stop,
                        .include_stop = request_.stop.include_stop,
                        .show_special = !request_.skip_special_tokens}) {}

int32_t Sequence::Advance(int32_t tokens) {
  STRATA_CHECK(tokens > 0 && computed_ + tokens <= known());  // Q1
  computed_ += tokens;
  const int32_t before = std::min(computed_peak_, prompt_tokens());
  computed_peak_ = std::max(computed_peak_, computed_);
  return std::min(computed_peak_, prompt_tokens()) - before;
}

void Sequence::Restart() {
  recomputed_ += computed_;
  computed_ = 0;
  ++restarts_;
}

SamplingState Sequence::sampling_state() const {
  SamplingState state;
  const absl::Span<const int32_t> all = tokens_;
  state.prompt = all.subspan(0, request_.prompt.size());
  state.output = all.subspan(request_.prompt.size());
  if (generated() < request_.stop.min_tokens) state.suppressed = terms_.suppressed;
  state.position = state.output.size();
  state.choice = request_.choice;
  return state;
}

std::optional<FinishReason> Sequence::EndingOf(int32_t id) {
  const StopCriteria& stop = request_.stop;
  if (!stop.ignore_eos && tokenizer_->IsEog(id)) return FinishReason::kEos;
  if (std::find(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), id) !=
      stop.stop_token_ids.end()) {
    stop_token_id_ = id;
    return FinishReason::kStop;
  }
  return std::nullopt;
}

void Sequence::PushText(int32_t id) {
  TextStream::Piece piece = text_.Push(id, generated() >= request_.stop.min_tokens);
  pending_.text += piece.text;
  stop_string_ = std::move(piece.stop_matched);
}

std::optional<FinishReason> Sequence::Accept(const SampledToken& token) {
  STRATA_CHECK(generated() < terms_.max_tokens);  // Q3
  tokens_.push_back(token.id);
  pending_.token_ids.push_back(token.id);
  pending_.tokens.push_back(token);
  pending_.completion_tokens = generated();

  const std::optional<FinishReason> ending = EndingOf(token.id);
  // The token that ends generation is reported, but its text only on demand.
  if (request_.detokenize && (!ending.has_value() || request_.stop.include_stop)) {
    PushText(token.id);
  }
  if (ending.has_value()) return ending;
  if (stop_string_.has_value()) return FinishReason::kStop;
  if (generated() < terms_.max_tokens) return std::nullopt;
  return terms_.context_bound ? FinishReason::kContext : FinishReason::kLength;
}

bool Sequence::DeltaDue() const {
  return pending_.token_ids.size() >= static_cast<size_t>(request_.stream_interval);
}

DeltaEvent Sequence::TakeDelta() { return std::exchange(pending_, DeltaEvent{}); }

FinishedEvent Sequence::Finish(FinishReason reason) {
  FinishedEvent event;
  event.reason = reason;
  if (request_.detokenize) event.text_tail = text_.Finish();
  event.stop_string = stop_string_;
  event.stop_token_id = stop_token_id_;
  event.prompt_tokens = prompt_tokens();
  event.completion_tokens = generated();
  event.recomputed_tokens = recomputed_;
  return event;
}

}  // namespace strata
