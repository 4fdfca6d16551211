#include "server/rpc/generate_call.h"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/rpc/errors.h"
#include "server/rpc/fold_events.h"

namespace strata::rpc {
namespace {

// What is left of everything a request may run out of, for QuotaFailure.
std::vector<Quota> Quotas(const Engine& engine) {
  const auto snapshot = engine.Snapshot();
  std::vector<Quota> quotas;
  quotas.push_back({"queue", absl::StrCat(snapshot->waiting, " of ", engine.options().queue_max,
                                          " places taken")});
  for (const Tier tier : {Tier::kHot, Tier::kWarm, Tier::kCold}) {
    const TierSnapshot& stats = snapshot->cache.tiers[static_cast<size_t>(tier)];
    if (stats.capacity_bytes == 0) continue;
    quotas.push_back({absl::StrCat("tier:", TierName(tier)),
                      absl::StrCat(stats.reserved_bytes, " of ", stats.capacity_bytes,
                                   " bytes reserved, ", stats.used_bytes, " used")});
  }
  return quotas;
}

}  // namespace

GenerateCall::GenerateCall(const CallEnvironment& environment, std::function<void()> wake)
    : environment_(environment), wake_(std::move(wake)) {}

GenerateCall::~GenerateCall() { Leave(); }

void GenerateCall::Start(const v1::GenerateRequest& message,
                         std::optional<Clock::TimePoint> deadline) {
  absl::Status status = Prepare(message, deadline);
  if (!status.ok()) {
    End(status);
    return;
  }
  if (!parsed_.text.has_value()) {
    Submit();
    return;
  }
  const auto self = shared_from_this();
  if (!environment_.tokenizing->Post([self] { self->TokenizeAndSubmit(); })) {
    End(DescribeEngineError(absl::ResourceExhaustedError("too many prompts wait to be tokenized"),
                            {{"tokenizing", "the queue is full"}}));
  }
}

absl::Status GenerateCall::Prepare(const v1::GenerateRequest& message,
                                   std::optional<Clock::TimePoint> deadline) {
  STRATA_RETURN_IF_ERROR(environment_.state->Enter(this));
  {
    absl::MutexLock lock(&mutex_);
    entered_ = true;
  }
  STRATA_ASSIGN_OR_RETURN(model_, environment_.state->Find(message.model()));
  STRATA_ASSIGN_OR_RETURN(
      parsed_, ReadRequest(message, environment_.defaults, *model_, environment_.clock->Now()));
  parsed_.request.deadline = deadline;
  writer_.emplace(model_, parsed_, std::chrono::system_clock::now());
  return absl::OkStatus();
}

void GenerateCall::TokenizeAndSubmit() {
  if (Cancelled()) {
    End(absl::CancelledError("cancelled by the client"));
    return;
  }
  absl::StatusOr<std::vector<int32_t>> prompt = TokenizePrompt(*parsed_.text, *model_);
  parsed_.text.reset();
  if (!prompt.ok()) {
    End(prompt.status());
    return;
  }
  parsed_.request.prompt = *std::move(prompt);
  Submit();
}

void GenerateCall::Submit() {
  const uint64_t ticket = model_->engine->Submit(std::move(parsed_.request), shared_from_this());
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    ticket_ = ticket;
    cancel = cancelled_;
  }
  if (cancel) model_->engine->Cancel(ticket);
}

bool GenerateCall::Cancelled() {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void GenerateCall::Cancel() {
  std::optional<uint64_t> ticket;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    ticket = ticket_;
  }
  if (ticket.has_value()) model_->engine->Cancel(*ticket);
}

void GenerateCall::Abort(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    abort_status_ = status;
  }
  Cancel();
}

void GenerateCall::Leave() {
  bool entered = false;
  {
    absl::MutexLock lock(&mutex_);
    entered = std::exchange(entered_, false);
  }
  if (entered) environment_.state->Leave(this);
}

void GenerateCall::OnStarted(const StartedEvent& event) {
  {
    absl::MutexLock lock(&mutex_);
    started_ = event;
  }
  Wake();
}

void GenerateCall::OnPrefill(int32_t done, int32_t total) {
  if (!writer_->progress()) return;
  {
    absl::MutexLock lock(&mutex_);
    prefill_ = Prefill{done, total};
  }
  Wake();
}

void GenerateCall::OnDelta(DeltaEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    prefill_.reset();
    if (!delta_.has_value()) {
      delta_ = std::move(event);
    } else {
      delta_->text += event.text;
      delta_->token_ids.insert(delta_->token_ids.end(), event.token_ids.begin(),
                               event.token_ids.end());
      delta_->tokens.insert(delta_->tokens.end(), event.tokens.begin(), event.tokens.end());
      delta_->completion_tokens = event.completion_tokens;
    }
  }
  Wake();
}

void GenerateCall::OnFinished(FinishedEvent event) {
  {
    absl::MutexLock lock(&mutex_);
    STRATA_CHECK(!end_.has_value());  // E1
    finished_ = event;
    summary_ = Summary{std::move(event)};
    end_ = absl::OkStatus();
  }
  Wake();
}

void GenerateCall::OnError(const absl::Status& status) {
  absl::Status described = DescribeEngineError(status, Quotas(*model_->engine));
  {
    absl::MutexLock lock(&mutex_);
    if (abort_status_.has_value() && absl::IsCancelled(status)) described = *abort_status_;
  }
  End(described);
}

void GenerateCall::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    STRATA_CHECK(!end_.has_value());  // E1
    end_ = status;
  }
  Wake();
}

void GenerateCall::Wake() {
  // One wake-up in the queue is enough, and bounds the queue by the number of calls.
  if (wake_posted_.exchange(true)) return;
  const auto self = shared_from_this();
  const auto task = [self] {
    self->wake_posted_.store(false);
    self->wake_();
  };
  if (!environment_.delivery->Post(task)) task();
}

GenerateCall::Taken GenerateCall::Take(v1::GenerateEvent* event, absl::Status* end) {
  Mail mail;
  {
    absl::MutexLock lock(&mutex_);
    mail = Pop();
  }
  if (std::holds_alternative<std::monostate>(mail)) return Taken::kNothing;
  if (const auto* status = std::get_if<absl::Status>(&mail)) {
    *end = *status;
    return Taken::kEnd;
  }
  *event = Write(mail);  // not under the lock: the engine may be waiting to append (G1)
  return Taken::kEvent;
}

GenerateCall::Taken GenerateCall::TakeAll(v1::GenerateResult* result, absl::Status* end) {
  {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) return Taken::kNothing;
  }
  v1::GenerateEvent event;
  while (Take(&event, end) == Taken::kEvent) FoldEvent(event, result);
  return Taken::kEnd;
}

GenerateCall::Mail GenerateCall::Pop() {
  const auto take = [](auto& slot) {
    Mail mail = std::move(*slot);
    slot.reset();
    return mail;
  };
  if (started_.has_value()) return take(started_);
  if (prefill_.has_value()) return take(prefill_);
  if (delta_.has_value()) return take(delta_);
  if (finished_.has_value()) return take(finished_);
  if (summary_.has_value()) return take(summary_);
  if (end_.has_value()) return *end_;
  return std::monostate();
}

v1::GenerateEvent GenerateCall::Write(const Mail& mail) const {
  if (const auto* started = std::get_if<StartedEvent>(&mail)) return writer_->Started(*started);
  if (const auto* prefill = std::get_if<Prefill>(&mail)) {
    return writer_->Progress(prefill->done, prefill->total);
  }
  if (const auto* delta = std::get_if<DeltaEvent>(&mail)) return writer_->Delta(*delta);
  if (const auto* finished = std::get_if<FinishedEvent>(&mail)) return writer_->Finished(*finished);
  return writer_->Summary(std::get<Summary>(mail).event);
}

}  // namespace strata::rpc
