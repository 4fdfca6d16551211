#include "tiering/io_engine.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace strata {

void IoEngine::Submit(IoRequest* request) {
  STRATA_CHECK(request->offset % kAlignment == 0 && request->bytes % kAlignment == 0);
  STRATA_CHECK(reinterpret_cast<uintptr_t>(request->data) % kAlignment == 0);
  STRATA_CHECK(request->bytes > 0);
  (request->write ? writes_submitted_ : reads_submitted_).fetch_add(1, std::memory_order_relaxed);
  request->submitted = std::chrono::steady_clock::now();
  DoSubmit(request);
}

void IoEngine::Finish(IoRequest* request, int64_t result) {
  STRATA_CHECK(result <= static_cast<int64_t>(request->bytes));
  (request->write ? write_latency_ : read_latency_)
      .Observe(std::chrono::steady_clock::now() - request->submitted);
  (request->write ? writes_completed_ : reads_completed_).fetch_add(1, std::memory_order_relaxed);
  request->Complete(result);
}

IoEngine::Counters IoEngine::counters() const {
  // Completions first: a snapshot then never shows more completed than submitted.
  Counters counters;
  counters.reads_completed = reads_completed_.load(std::memory_order_acquire);
  counters.writes_completed = writes_completed_.load(std::memory_order_acquire);
  counters.reads_submitted = reads_submitted_.load(std::memory_order_acquire);
  counters.writes_submitted = writes_submitted_.load(std::memory_order_acquire);
  counters.read_latency = read_latency_.Snapshot();
  counters.write_latency = write_latency_.Snapshot();
  return counters;
}

void IoQueue::Append(List* list, IoRequest* request) {
  request->next = nullptr;
  (list->last == nullptr ? list->first : list->last->next) = request;
  list->last = request;
}

IoRequest* IoQueue::PopFront(List* list) {
  IoRequest* request = list->first;
  list->first = request->next;
  if (list->first == nullptr) list->last = nullptr;
  request->next = nullptr;
  return request;
}

void IoQueue::Push(IoRequest* request) { Append(request->write ? &writes_ : &reads_, request); }

IoRequest* IoQueue::Start() {
  if (in_flight_ == depth_) return nullptr;
  const bool write =
      writes_.first != nullptr && (writes_in_flight_ == 0 || reads_.first == nullptr);
  List* list = write ? &writes_ : &reads_;
  if (list->first == nullptr) return nullptr;
  ++in_flight_;
  writes_in_flight_ += write ? 1 : 0;
  return PopFront(list);
}

void IoQueue::Done(bool write) {
  --in_flight_;
  writes_in_flight_ -= write ? 1 : 0;
  STRATA_CHECK(in_flight_ >= 0 && writes_in_flight_ >= 0);
}

absl::StatusOr<std::unique_ptr<IoEngine>> MakeIoEngine(absl::string_view name, int fd,
                                                       int32_t depth) {
  if (name == "threads") return MakeThreadIoEngine(fd, depth);
  if (name != "auto" && name != "io_uring") {
    return absl::InvalidArgumentError(absl::StrCat("unknown I/O engine \"", name, "\""));
  }
  auto uring = MakeUringIoEngine(fd, depth);
  if (uring.ok() || name == "io_uring") return uring;
  return MakeThreadIoEngine(fd, depth);
}

}  // namespace strata
