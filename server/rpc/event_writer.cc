#include "server/rpc/event_writer.h"

#include <utility>

#include "google/protobuf/util/time_util.h"
#include "server/rpc/cache_reports.h"

namespace strata::rpc {
namespace {

using google::protobuf::util::TimeUtil;

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kContext:
      return v1::FINISH_REASON_CONTEXT;
    case FinishReason::kTimeLimit:
      return v1::FINISH_REASON_TIME_LIMIT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

google::protobuf::Duration ToProto(std::chrono::nanoseconds time) {
  return TimeUtil::NanosecondsToDuration(time.count());
}

google::protobuf::Timestamp ToProto(std::chrono::system_clock::time_point time) {
  return TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

EventWriter::EventWriter(std::shared_ptr<const ServedModel> model, const ParsedRequest& parsed,
                         std::chrono::system_clock::time_point received)
    : model_(std::move(model)),
      request_id_(parsed.request.id),
      seed_(parsed.request.sampling.seed),
      output_(parsed.output),
      received_(received) {}

v1::GenerateEvent EventWriter::Started(const StartedEvent& event) const {
  v1::GenerateEvent message;
  auto* started = message.mutable_started();
  started->set_request_id(request_id_);
  started->set_model(model_->name);
  started->set_seed(seed_);
  started->set_prompt_tokens(static_cast<uint32_t>(event.prompt_tokens));
  *started->mutable_effective_policy() = rpc::ToProto(event.policy, model_->engine->tier_options());
  return message;
}

v1::GenerateEvent EventWriter::Progress(int32_t done, int32_t total) const {
  v1::GenerateEvent message;
  message.mutable_progress()->set_prompt_tokens_done(static_cast<uint32_t>(done));
  message.mutable_progress()->set_prompt_tokens(static_cast<uint32_t>(total));
  return message;
}

v1::GenerateEvent EventWriter::Delta(const DeltaEvent& event) const {
  v1::GenerateEvent message;
  auto* delta = message.mutable_delta();
  delta->set_text(event.text);
  delta->set_completion_tokens(static_cast<uint32_t>(event.completion_tokens));
  if (output_.return_token_ids) {
    delta->mutable_token_ids()->Add(event.token_ids.begin(), event.token_ids.end());
  }
  if (!output_.logprobs) return message;
  for (const SampledToken& token : event.tokens) {
    auto* chosen = delta->add_logprobs()->mutable_chosen();
    chosen->set_token_id(static_cast<uint32_t>(token.id));
    chosen->set_logprob(token.logprob);
    chosen->set_token(model_->tokenizer->TokenBytes(token.id, /*show_special=*/true));
  }
  return message;
}

v1::GenerateEvent EventWriter::Finished(const FinishedEvent& event) const {
  v1::GenerateEvent message;
  auto* finished = message.mutable_finished();
  finished->set_reason(ToProto(event.reason));
  if (event.stop_string.has_value()) {
    finished->set_stop_string(*event.stop_string);
  } else if (event.stop_token_id.has_value()) {
    finished->set_stop_token_id(static_cast<uint32_t>(*event.stop_token_id));
  }
  finished->set_text_tail(event.text_tail);
  finished->set_completion_tokens(static_cast<uint32_t>(event.completion_tokens));
  return message;
}

v1::GenerateEvent EventWriter::Summary(const FinishedEvent& event) const {
  v1::GenerateEvent message;
  auto* summary = message.mutable_summary();
  summary->mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(event.prompt_tokens));
  summary->mutable_usage()->set_completion_tokens(static_cast<uint32_t>(event.completion_tokens));
  if (output_.cache_stats) {
    *summary->mutable_kv() =
        rpc::ToProto(event.usage, event.recomputed_tokens, model_->engine->tier_options());
  }
  auto* timing = summary->mutable_timing();
  *timing->mutable_received() = ToProto(received_);
  *timing->mutable_queued() = ToProto(event.timing.queued);
  *timing->mutable_prefill() = ToProto(event.timing.prefill);
  *timing->mutable_time_to_first_token() = ToProto(event.timing.time_to_first_token);
  *timing->mutable_decode() = ToProto(event.timing.decode);
  return message;
}

}  // namespace strata::rpc
