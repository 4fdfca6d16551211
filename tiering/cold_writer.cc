#include "tiering/cold_writer.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace strata {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{10'000};
// A healthy disk writes a record in milliseconds. Operations carry real time, so this is real time
// too.
constexpr milliseconds kSlowWrite{1'000};

}  // namespace

ColdWriter::ColdWriter(ColdStore* store, Options options, const Clock* clock)
    : store_(store), options_(options), clock_(clock), records_(store->records()) {
  to_erase_.reserve(store->records());
}

absl::StatusOr<std::unique_ptr<ColdWriter>> ColdWriter::Create(ColdStore* store, Options options,
                                                               const Clock* clock) {
  std::unique_ptr<ColdWriter> writer(new ColdWriter(store, options, clock));
  for (int32_t i = 0; i < options.buffers; ++i) {
    writer->writes_.push_back(std::make_unique<ColdStore::WriteOp>());
    STRATA_RETURN_IF_ERROR(store->Prepare(writer->writes_.back().get()));
    writer->writes_.back()->buffer_index = i;
    writer->idle_writes_.push_back(writer->writes_.back().get());
  }
  writer->since_.resize(options.buffers);
  for (int32_t i = 0; i < kErasesMax; ++i) {
    writer->erases_.push_back(std::make_unique<ColdStore::EraseOp>());
    writer->idle_erases_.push_back(writer->erases_.back().get());
  }
  return writer;
}

bool ColdWriter::CanBegin() const {
  const Clock::TimePoint now = clock_->Now();
  return !idle_writes_.empty() && records_.free() > 0 && now >= next_write_ && now >= retry_ &&
         now >= distrust_;
}

ColdStore::WriteOp* ColdWriter::Begin(BlockId block, const std::byte* source) {
  if (!CanBegin()) return nullptr;
  ColdStore::WriteOp* op = idle_writes_.back();
  STRATA_CHECK(records_.Allocate(1, &op->record));
  idle_writes_.pop_back();
  since_[op->buffer_index] = std::chrono::steady_clock::now();
  op->block = block;
  op->source = source;
  if (options_.bytes_per_second > 0) {
    const double seconds = static_cast<double>(store_->record_bytes()) /
                           static_cast<double>(options_.bytes_per_second);
    next_write_ = std::max(next_write_, clock_->Now()) +
                  std::chrono::duration_cast<Clock::TimePoint::duration>(
                      std::chrono::duration<double>(seconds));
  }
  return op;
}

ColdWriter::Outcome ColdWriter::Finish(ColdStore::WriteOp* op) {
  since_[op->buffer_index].reset();
  idle_writes_.push_back(op);
  if (op->result == ColdStore::Result::kOk) {
    store_->Publish(*op);
    ++published_;
    Succeed();
    return Outcome::kPublished;
  }
  Fail();
  if (!op->published_maybe) {
    records_.Release(op->record);
    return Outcome::kFailed;
  }
  // Counted as on disk until the opposite is sure.
  ++published_;
  Erase(op->record);
  return Outcome::kFailedErasing;
}

void ColdWriter::Erase(SlotId record) {
  STRATA_CHECK(records_.IsUsed(record));
  to_erase_.push_back(record);
  Pump();
}

void ColdWriter::Pump() {
  while (!to_erase_.empty() && !idle_erases_.empty() && clock_->Now() >= retry_) {
    ColdStore::EraseOp* op = idle_erases_.back();
    idle_erases_.pop_back();
    op->record = to_erase_.back();
    to_erase_.pop_back();
    ++erases_in_flight_;
    store_->Erase(op);
  }
}

bool ColdWriter::FinishErase(ColdStore::EraseOp* op) {
  --erases_in_flight_;
  idle_erases_.push_back(op);
  const bool erased = op->result == ColdStore::Result::kOk;
  if (erased) {
    --published_;
    records_.Release(op->record);
    Succeed();
  } else {
    to_erase_.push_back(op->record);
    Fail();
  }
  Pump();
  return erased;
}

// Operations in flight together fail together: that is one failure.
void ColdWriter::Fail() {
  if (pause_.count() > 0 && clock_->Now() < retry_) return;
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  retry_ = clock_->Now() + pause_;
}

void ColdWriter::NoteReadError() { distrust_ = clock_->Now() + kLongestPause; }

void ColdWriter::Succeed() { pause_ = milliseconds{0}; }

bool ColdWriter::Progressing() const {
  if (AnyWriteOlderThan(options_.patience)) return false;
  if (InFlight()) return true;
  const Clock::TimePoint now = clock_->Now();
  return pause_.count() == 0 && now >= distrust_ && now < next_write_;
}

bool ColdWriter::Degraded() const {
  return pause_.count() > 0 || clock_->Now() < distrust_ || AnyWriteOlderThan(kSlowWrite);
}

bool ColdWriter::AnyWriteOlderThan(milliseconds limit) const {
  const RealTime now = std::chrono::steady_clock::now();
  return std::any_of(since_.begin(), since_.end(), [&](const std::optional<RealTime>& since) {
    return since.has_value() && now - *since > limit;
  });
}

}  // namespace strata
