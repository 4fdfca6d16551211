#include "server/rpc/fold_events.h"

namespace strata::rpc {

void FoldEvent(const v1::GenerateEvent& event, v1::GenerateResult* result) {
  const auto choice = [&]() -> v1::GenerateResult::Choice* {
    return result->choices().empty() ? result->add_choices() : result->mutable_choices(0);
  };
  switch (event.event_case()) {
    case v1::GenerateEvent::kStarted:
      result->set_request_id(event.started().request_id());
      result->set_model(event.started().model());
      result->set_seed(event.started().seed());
      *result->mutable_effective_policy() = event.started().effective_policy();
      break;
    case v1::GenerateEvent::kDelta:
      choice()->mutable_text()->append(event.delta().text());
      choice()->mutable_token_ids()->MergeFrom(event.delta().token_ids());
      choice()->mutable_logprobs()->MergeFrom(event.delta().logprobs());
      break;
    case v1::GenerateEvent::kFinished:
      choice()->mutable_text()->append(event.finished().text_tail());
      choice()->set_reason(event.finished().reason());
      if (event.finished().has_stop_string()) {
        choice()->set_stop_string(event.finished().stop_string());
      } else if (event.finished().has_stop_token_id()) {
        choice()->set_stop_token_id(event.finished().stop_token_id());
      }
      break;
    case v1::GenerateEvent::kSummary:
      *result->mutable_usage() = event.summary().usage();
      if (event.summary().has_kv()) *result->mutable_kv() = event.summary().kv();
      *result->mutable_timing() = event.summary().timing();
      break;
    case v1::GenerateEvent::kProgress:
    case v1::GenerateEvent::EVENT_NOT_SET:
      break;
  }
}

}  // namespace strata::rpc
