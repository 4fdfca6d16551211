#include "server/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/engine/engine_metrics.h"
#include "spdlog/spdlog.h"

namespace strata {
namespace {

double Seconds(Clock::TimePoint::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

absl::Status WithPrefix(const char* prefix, const absl::Status& status) {
  return absl::ResourceExhaustedError(absl::StrCat(prefix, ": ", status.message()));
}

}  // namespace

SchedulerLimits LimitsOf(const EngineOptions& options, const TierOptions& tiers) {
  SchedulerLimits limits;
  limits.sequences_max = options.max_sequences;
  limits.batch_tokens_max = options.max_batch_tokens;
  limits.piece_tokens = tiers.piece_tokens;
  return limits;
}

EngineCore::EngineCore(Parts parts)
    : options_(parts.options),
      model_(parts.model),
      cache_(parts.cache),
      clock_(parts.clock),
      gauges_(parts.gauges),
      publish_(std::move(parts.publish)),
      limits_(LimitsOf(options_, cache_->options())),
      totals_(EmptyEngineSnapshot()),
      batch_(options_.max_batch_tokens, options_.max_sequences, model_->config().vocab_size),
      sampler_(model_, parts.pool) {
  STRATA_CHECK(limits_.Validate().ok());
  terms_ = {.tokenizer = &model_->tokenizer(),
            .vocab_size = model_->config().vocab_size,
            .context_max = options_.max_context,
            .tiers = &cache_->options(),
            .default_policy = parts.default_policy};
  Publish();
  empty_cache_ = totals_.cache;
}

EngineCore::~EngineCore() { CancelAll(); }

// ---- Arrival and cancellation.

void EngineCore::Submit(Submission submission) {
  if (!submission.refusal.ok()) {
    return Refuse(std::move(submission.sink), std::move(submission.refusal));
  }
  Request& request = submission.request;
  if (request.received == Clock::TimePoint{}) request.received = clock_->Now();
  absl::StatusOr<RequestTerms> terms = SettleTerms(request, terms_);
  absl::Status status =
      terms.ok() ? CheckCapacity(*terms, cache_->options(), empty_cache_) : terms.status();
  if (!status.ok()) {
    gauges_->waiting.fetch_sub(1, std::memory_order_relaxed);
    return Refuse(std::move(submission.sink), std::move(status));
  }
  waiting_.push_back(std::make_unique<Sequence>(submission.ticket, std::move(request),
                                                *std::move(terms), std::move(submission.sink),
                                                terms_.tokenizer));
  changed_ = true;
}

void EngineCore::Cancel(uint64_t ticket) {
  const auto is_it = [&](const Owned& sequence) { return sequence->ticket() == ticket; };
  const absl::Status cancelled = absl::CancelledError("the request was cancelled");
  if (const auto it = std::find_if(waiting_.begin(), waiting_.end(), is_it); it != waiting_.end()) {
    return Fail(it->get(), cancelled);
  }
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    Fail(it->get(), cancelled);
  }
}

void EngineCore::CancelAll() {
  const absl::Status stopping = absl::CancelledError("the engine is stopping");
  while (!waiting_.empty()) Fail(waiting_.back().get(), stopping);
  while (!running_.empty()) Fail(running_.back().get(), stopping);
  if (changed_) Publish();
  DeliverEndings();
}

// ---- Ends of requests.

void EngineCore::Refuse(std::shared_ptr<RequestSink> sink, absl::Status status) {
  CountRefusal(status);
  endings_.push_back({nullptr, std::move(sink), std::nullopt, std::move(status)});
  changed_ = true;
}

void EngineCore::Finish(Sequence* sequence, FinishReason reason) {
  if (sequence->HasPendingTokens()) sequence->sink().OnDelta(sequence->TakeDelta());
  FinishedEvent event = sequence->Finish(reason);
  event.usage = cache_->Usage(sequence->progress.handle);
  const Clock::TimePoint now = clock_->Now();
  const Clock::TimePoint received = sequence->request().received;
  const Sequence::Progress& progress = sequence->progress;
  const bool produced = sequence->generated() > 0;
  event.timing.queued = progress.admitted - received;
  event.timing.prefill = (produced ? progress.first_token : now) - progress.admitted;
  if (produced) {
    event.timing.time_to_first_token = progress.first_token - received;
    event.timing.decode = progress.last_token - progress.first_token;
    Observe(Seconds(event.timing.decode), &totals_.request_decode);
  }
  Observe(Seconds(now - received), &totals_.request_duration);
  ++totals_.finished[static_cast<size_t>(reason)];
  End(sequence, std::move(event), absl::OkStatus());
}

void EngineCore::Fail(Sequence* sequence, absl::Status status) {
  if (absl::IsCancelled(status)) {
    ++totals_.cancelled;
  } else if (absl::IsDeadlineExceeded(status)) {
    ++totals_.deadline_exceeded;
  } else if (IsRunning(sequence)) {
    ++totals_.failed;
  } else {
    CountRefusal(status);
  }
  End(sequence, std::nullopt, std::move(status));
}

bool EngineCore::IsRunning(const Sequence* sequence) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&](const Owned& owned) { return owned.get() == sequence; });
}

Sequence* EngineCore::FindRunning(SequenceHandle handle) const {
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const Owned& sequence) {
    return sequence->progress.handle == handle;
  });
  return it != running_.end() ? it->get() : nullptr;
}

void EngineCore::End(Sequence* sequence, std::optional<FinishedEvent> finished,
                     absl::Status error) {
  const auto is_it = [&](const Owned& owned) { return owned.get() == sequence; };
  Owned owned;
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    cache_->Release(sequence->progress.handle);
    owned = std::move(*it);
    running_.erase(it);
  } else {
    const auto waiter = std::find_if(waiting_.begin(), waiting_.end(), is_it);
    STRATA_CHECK(waiter != waiting_.end());
    gauges_->waiting.fetch_sub(1, std::memory_order_relaxed);
    owned = std::move(*waiter);
    waiting_.erase(waiter);
  }
  endings_.push_back({std::move(owned), nullptr, std::move(finished), std::move(error)});
  changed_ = true;
}

void EngineCore::CountRefusal(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) {
    ++totals_.rejected_invalid;
  } else if (absl::StartsWith(status.message(), kQueueFull)) {
    ++totals_.rejected_queue_full;
  } else if (absl::StartsWith(status.message(), kQueueTimeout)) {
    ++totals_.rejected_queue_timeout;
  } else if (absl::IsResourceExhausted(status)) {
    ++totals_.rejected_capacity;
  } else {
    ++totals_.failed;
  }
}

void EngineCore::DeliverEndings() {
  for (Ending& ending : endings_) {
    RequestSink& sink = ending.sequence != nullptr ? ending.sequence->sink() : *ending.sink;
    if (ending.finished.has_value()) {
      sink.OnFinished(*std::move(ending.finished));
    } else {
      sink.OnError(ending.error);
    }
    gauges_->in_flight.fetch_sub(1, std::memory_order_release);
  }
  endings_.clear();
}

// ---- A turn.

EngineCore::Turn EngineCore::RunTurn() {
  cache_->Poll();
  Expire();
  Admit();
  const bool stepped = RunStep();
  const bool idle = waiting_.empty() && running_.empty();
  if (stepped || idle) {
    gauges_->progress_ns.store(clock_->Now().time_since_epoch() / std::chrono::nanoseconds(1),
                               std::memory_order_relaxed);
  }
  if (stepped || changed_ || !CacheAtRest()) Publish();
  DeliverEndings();
  if (stepped) return Turn::kStepped;
  return idle ? Turn::kIdle : Turn::kWaiting;
}

void EngineCore::Expire() {
  const Clock::TimePoint now = clock_->Now();
  const auto past_deadline = [&](const Sequence& sequence) {
    return sequence.request().deadline.has_value() && *sequence.request().deadline <= now;
  };
  const absl::Status late = absl::DeadlineExceededError("the request's deadline has passed");
  // Backwards: ending one removes it.
  for (size_t i = waiting_.size(); i-- > 0;) {
    Sequence* sequence = waiting_[i].get();
    const Request& request = sequence->request();
    if (past_deadline(*sequence)) {
      Fail(sequence, late);
    } else if (request.queue_deadline.has_value() && *request.queue_deadline <= now) {
      Fail(sequence, absl::ResourceExhaustedError(absl::StrCat(
                         kQueueTimeout, ": waited ", Seconds(now - request.received), " s with ", i,
                         " requests ahead and ", running_.size(), " running")));
    }
  }
  for (size_t i = running_.size(); i-- > 0;) {
    Sequence* sequence = running_[i].get();
    const auto& limit = sequence->request().stop.time_limit;
    if (past_deadline(*sequence)) {
      Fail(sequence, late);
    } else if (limit.has_value() && now - sequence->progress.admitted >= *limit) {
      Finish(sequence, FinishReason::kTimeLimit);
    }
  }
}

void EngineCore::Admit() {
  waiter_views_.clear();
  for (const Owned& waiter : waiting_) {
    if (waiter_views_.size() == static_cast<size_t>(limits_.admission_scan_max)) break;
    waiter_views_.push_back({.overtaken = waiter->progress.overtaken, .refused = false});
  }
  while (const std::optional<size_t> next =
             NextToAdmit(waiter_views_, static_cast<int32_t>(running_.size()), limits_)) {
    if (TryAdmit(*next)) {
      waiter_views_.erase(waiter_views_.begin() + static_cast<ptrdiff_t>(*next));
    } else {
      waiter_views_[*next].refused = true;
    }
  }
}

bool EngineCore::TryAdmit(size_t index) {
  Sequence* sequence = waiting_[index].get();
  const absl::StatusOr<SequenceHandle> handle =
      cache_->Admit(sequence->terms().stored_tokens, sequence->terms().policy);
  if (absl::IsResourceExhausted(handle.status())) return false;
  if (!handle.ok()) {
    Fail(sequence, absl::IsOutOfRange(handle.status()) ? WithPrefix(kKvCapacity, handle.status())
                                                       : handle.status());
    return true;
  }
  for (size_t i = 0; i < index; ++i) ++waiting_[i]->progress.overtaken;
  Owned owned = std::move(waiting_[index]);
  waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(index));
  gauges_->waiting.fetch_sub(1, std::memory_order_relaxed);
  Start(std::move(owned), *handle);
  return true;
}

void EngineCore::Start(Owned sequence, SequenceHandle handle) {
  Sequence::Progress& progress = sequence->progress;
  progress.handle = handle;
  progress.admitted = clock_->Now();
  progress.last_step = step_;
  Observe(Seconds(progress.admitted - sequence->request().received), &totals_.request_queue);
  sequence->sink().OnStarted({sequence->prompt_tokens(), sequence->terms().policy});
  running_.push_back(std::move(sequence));
  changed_ = true;
}

bool EngineCore::RunStep() {
  running_views_.clear();
  for (const Owned& sequence : running_) {
    running_views_.push_back({.computed = sequence->computed(),
                              .known = sequence->known(),
                              .decoding = sequence->decoding(),
                              .last_step = sequence->progress.last_step});
  }
  PlanStep(running_views_, limits_, &plan_);
  if (plan_.slices.empty()) return false;
  ++step_;
  planned_.clear();
  for (const PlannedSlice& slice : plan_.slices) {
    Sequence* sequence = running_[slice.index].get();
    sequence->progress.last_step = step_;
    planned_.push_back({sequence, slice.tokens});
  }
  Execute();
  return true;
}

void EngineCore::Execute() {
  // Each round ends one request, or is the step.
  while (!planned_.empty()) {
    batch_.Clear();
    for (const PlannedTokens& item : planned_) batch_.Add(item.sequence, item.tokens);
    const Clock::TimePoint started = clock_->Now();
    const absl::StatusOr<KvStep*> step = cache_->PrepareStep(batch_.slices());
    if (!step.ok()) {
      FailStep(step.status());
      std::erase_if(planned_, [&](const PlannedTokens& item) { return !IsRunning(item.sequence); });
      continue;
    }
    sampler_.Plan(&batch_);
    const absl::Status status = model_->Forward(batch_.forward(), *step, batch_.logits());
    cache_->FinishStep(status.ok());
    return status.ok() ? TakeResults(started) : Recover(status);
  }
}

void EngineCore::Recover(const absl::Status& status) {
  bool recovered = false;
  for (const SequenceHandle handle : cache_->TakeDamaged()) {
    Sequence* sequence = FindRunning(handle);
    if (sequence == nullptr) continue;
    Restart(sequence, status);
    recovered = true;
  }
  // The next turn plans the others' slices again.
  if (!recovered) FailStep(status);
}

void EngineCore::FailStep(const absl::Status& status) {
  if (Sequence* sequence = FindRunning(TieredCache::SequenceOf(status)); sequence != nullptr) {
    return Fail(sequence, status);
  }
  spdlog::error("a step failed, and its {} requests with it: {}", batch_.entries().size(),
                status.ToString());
  for (const StepBatch::Entry& entry : batch_.entries()) Fail(entry.sequence, status);
}

void EngineCore::Restart(Sequence* sequence, const absl::Status& cause) {
  if (sequence->restarts() >= options_.recomputes_max) {
    return Fail(sequence, absl::DataLossError(
                              absl::StrCat("gave up after computing the context again ",
                                           sequence->restarts(), " times: ", cause.message())));
  }
  cache_->Reset(sequence->progress.handle);
  totals_.recomputed_tokens += static_cast<uint64_t>(sequence->computed());
  sequence->Restart();
}

void EngineCore::TakeResults(Clock::TimePoint started) {
  const Clock::TimePoint now = clock_->Now();
  ++totals_.steps;
  Observe(batch_.rows(), &totals_.step_batch_tokens);
  const bool decodes_only =
      std::all_of(batch_.entries().begin(), batch_.entries().end(),
                  [](const StepBatch::Entry& entry) { return entry.sequence->decoding(); });
  Observe(Seconds(now - started),
          decodes_only ? &totals_.step_seconds_decode : &totals_.step_seconds_prefill);
  for (const StepBatch::Entry& entry : batch_.entries()) {
    Sequence* sequence = entry.sequence;
    totals_.prompt_tokens += static_cast<uint64_t>(sequence->Advance(entry.tokens));
    ReportPrefill(sequence);
  }
  const absl::Span<const SampledToken> tokens = sampler_.Draw(batch_);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const StepBatch::Entry& entry = batch_.entries()[i];
    if (entry.logits_index >= 0) TakeToken(entry.sequence, tokens[i], now);
  }
}

void EngineCore::ReportPrefill(Sequence* sequence) {
  const int32_t done = std::min(sequence->computed(), sequence->prompt_tokens());
  if (done <= sequence->progress.prefill_reported) return;
  sequence->progress.prefill_reported = done;
  sequence->sink().OnPrefill(done, sequence->prompt_tokens());
}

void EngineCore::TakeToken(Sequence* sequence, const SampledToken& token, Clock::TimePoint now) {
  Sequence::Progress& progress = sequence->progress;
  ++totals_.generation_tokens;
  if (sequence->generated() == 0) {
    progress.first_token = now;
    Observe(Seconds(now - sequence->request().received), &totals_.time_to_first_token);
    Observe(Seconds(now - progress.admitted), &totals_.request_prefill);
  } else {
    Observe(Seconds(now - progress.last_token), &totals_.inter_token_latency);
  }
  progress.last_token = now;
  if (const std::optional<FinishReason> reason = sequence->Accept(token); reason.has_value()) {
    return Finish(sequence, *reason);
  }
  if (sequence->DeltaDue()) sequence->sink().OnDelta(sequence->TakeDelta());
}

// ---- What others see.

void EngineCore::Publish() {
  totals_.cache = cache_->Snapshot();
  totals_.running = running_.size();
  totals_.waiting = waiting_.size();
  changed_ = false;
  publish_(std::make_shared<const EngineSnapshot>(totals_));
}

bool EngineCore::CacheAtRest() const {
  const CacheSnapshot& cache = totals_.cache;
  const bool held = std::any_of(cache.tiers.begin(), cache.tiers.end(), [](const TierSnapshot& t) {
    return t.used_bytes != 0 || t.reserved_bytes != 0;
  });
  return !held && cache.io_reads_submitted == cache.io_reads_completed &&
         cache.io_writes_submitted == cache.io_writes_completed;
}

}  // namespace strata
