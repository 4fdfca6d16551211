#include "tiering/cold_staging.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace strata {

ColdStaging::ColdStaging(const RecordLayout* layout, PagePool<UnitId> units, ColdStore* store)
    : layout_(*layout),
      store_(store),
      units_(std::move(units)),
      unit_states_(units_.slots().capacity()),
      reads_(units_.slots().capacity()),
      records_(store->records()),
      unit_of_(size_t{1} * store->records() * layout->groups()) {
  resident_.reserve(records_.size());
  streaming_.reserve(records_.size());
  step_.reserve(records_.size());
  for (uint32_t i = 0; i < reads_.size(); ++i) reads_[i].unit = UnitId(i);
}

UnitId& ColdStaging::UnitAt(SlotId record, int32_t group) {
  return unit_of_[size_t{record.value()} * layout_.groups() + group];
}

UnitId ColdStaging::UnitAt(SlotId record, int32_t group) const {
  return unit_of_[size_t{record.value()} * layout_.groups() + group];
}

bool ColdStaging::Ready(SlotId record, int32_t group) const {
  const UnitId unit = UnitAt(record, group);
  return unit.valid() && unit_states_[unit.value()].ready;
}

bool ColdStaging::IsMissing(SlotId record) const { return !Ready(record, group_); }

const std::byte* ColdStaging::Unit(SlotId record, int32_t group) {
  STRATA_CHECK(Ready(record, group));
  return units_.At(UnitAt(record, group));
}

// --- which blocks are resident ---

void ColdStaging::PutInto(Place place, SlotId record) {
  Record& entry = records_[record.value()];
  std::vector<SlotId>& list = ListOf(place);
  entry.place = place;
  entry.index = static_cast<uint32_t>(list.size());
  list.push_back(record);
}

void ColdStaging::TakeOut(SlotId record) {
  Record& entry = records_[record.value()];
  std::vector<SlotId>& list = ListOf(entry.place);
  list[entry.index] = list.back();
  records_[list[entry.index].value()].index = entry.index;
  list.pop_back();
  entry.place = Place::kNone;
}

// With c cold blocks of g groups in u units, r resident blocks leave u - g r units to the others,
// which need two each: r <= (u - 2 c) / (g - 2). Up to two groups everything fits (G1).
int32_t ColdStaging::ResidentTarget() const {
  const int64_t known = known_records();
  const int64_t groups = layout_.groups();
  if (groups <= 2) return static_cast<int32_t>(known);
  const int64_t target = (unit_capacity() - 2 * known) / (groups - 2);
  return static_cast<int32_t>(std::clamp<int64_t>(target, 0, known));
}

void ColdStaging::Rebalance() {
  const int32_t target = ResidentTarget();
  while (resident_records() > target) {
    const SlotId record = resident_.back();
    TakeOut(record);
    PutInto(Place::kStreaming, record);
  }
  while (resident_records() < target) {
    const SlotId record = streaming_.back();
    TakeOut(record);
    PutInto(Place::kResident, record);
  }
}

void ColdStaging::Add(SlotId record) {
  Record& entry = records_[record.value()];
  STRATA_CHECK(!in_step_ && entry.place == Place::kNone && entry.units == 0);
  entry = Record{};
  PutInto(Place::kStreaming, record);
  Rebalance();
}

void ColdStaging::Remove(SlotId record) {
  STRATA_CHECK(!in_step_);
  for (int32_t group = 0; group < layout_.groups(); ++group) Evict(record, group);
  if (records_[record.value()].in_step) {
    // Order matters to nobody once a step is over: only read-ahead for the next one uses it.
    step_.erase(std::find(step_.begin(), step_.end(), record));
    records_[record.value()].in_step = false;
  }
  TakeOut(record);
  Rebalance();
}

// --- units ---

// False when no unit is free. Within the window that never lasts: streaming records hold at most
// the units that resident ones leave, and cancelled reads come to an end.
bool ColdStaging::Fetch(SlotId record, int32_t group) {
  Record& entry = records_[record.value()];
  if (entry.failed || UnitAt(record, group).valid()) return true;
  UnitId unit;
  if (!units_.slots().Allocate(1, &unit)) return false;
  UnitAt(record, group) = unit;
  unit_states_[unit.value()] = {.record = record, .group = group};
  ++entry.units;
  ++reads_in_flight_;
  ColdStore::ReadOp& op = reads_[unit.value()];
  op.record = record;
  op.group = group;
  store_->Read(&op, units_.At(unit));
  return true;
}

// A unit whose read is in flight is only forgotten here; OnRead frees it.
void ColdStaging::Evict(SlotId record, int32_t group) {
  UnitId& unit = UnitAt(record, group);
  if (!unit.valid()) return;
  Record& entry = records_[record.value()];
  --entry.units;
  UnitState& state = unit_states_[unit.value()];
  state.record = SlotId();
  if (state.ready) {
    state.ready = false;
    units_.slots().Release(unit);
  }
  unit = UnitId();
}

bool ColdStaging::OnRead(ColdStore::ReadOp* op) {
  --reads_in_flight_;
  UnitState& state = unit_states_[op->unit.value()];
  if (!state.record.valid()) {
    units_.slots().Release(op->unit);
    IssueAhead();  // it may have waited for this unit
    return false;
  }
  if (op->result == ColdStore::Result::kOk) {
    state.ready = true;
    const bool awaited = records_[op->record.value()].in_step && op->group == group_;
    if (awaited && missing_ > 0) --missing_;
    return false;
  }
  // Evict must free the unit: nothing is in flight any more.
  state.ready = true;
  const bool first = !records_[op->record.value()].failed;
  Evict(op->record, op->group);
  MarkFailed(op->record);
  return first;
}

void ColdStaging::MarkFailed(SlotId record) {
  records_[record.value()].failed = true;
  if (records_[record.value()].in_step) failed_ = true;
}

// --- a step ---

void ColdStaging::BeginStep(absl::Span<const SlotId> records) {
  for (const SlotId record : step_) records_[record.value()].in_step = false;
  step_.assign(records.begin(), records.end());
  int32_t streaming = 0;
  in_step_ = true;
  failed_ = false;
  for (const SlotId record : step_) {
    Record& entry = records_[record.value()];
    STRATA_CHECK(entry.place != Place::kNone);
    entry.in_step = true;
    failed_ |= entry.failed;
    streaming += entry.place == Place::kStreaming ? 1 : 0;
  }
  const int32_t shared = unit_capacity() - resident_records() * layout_.groups();
  window_ = streaming == 0 ? layout_.groups() : std::clamp(shared / streaming, 1, layout_.groups());
  EvictLeftovers();
  group_ = 0;
  next_issue_ = 0;
  missing_ = 0;
  IssueAhead();
}

// What earlier steps left in the shared units and this one does not read first.
void ColdStaging::EvictLeftovers() {
  for (const UnitState& state : unit_states_) {
    if (!state.record.valid()) continue;
    const Record& entry = records_[state.record.value()];
    if (entry.place == Place::kStreaming && (!entry.in_step || state.group >= window_)) {
      Evict(state.record, state.group);
    }
  }
}

// What the entered group wants and has from earlier steps.
void ColdStaging::CountLookups() {
  const auto layers = static_cast<uint64_t>(layout_.group(group_).layers);
  for (const SlotId record : step_) {
    page_lookups_ += layers;
    const UnitId unit = UnitAt(record, group_);
    if (unit.valid() && unit_states_[unit.value()].used) page_hits_ += layers;
  }
}

// The group has been read: what of it stays counts as found from now on.
void ColdStaging::MarkUsed() {
  for (const SlotId record : step_) {
    if (Ready(record, group_)) unit_states_[UnitAt(record, group_).value()].used = true;
  }
}

void ColdStaging::EnterGroup(int32_t group) {
  if (group > 0) MarkUsed();
  if (DropsOnEntering(group)) {
    for (const SlotId record : step_) {
      if (records_[record.value()].place == Place::kStreaming) Evict(record, group - 1);
    }
  }
  group_ = group;
  missing_ = 0;
  for (const SlotId record : step_) missing_ += IsMissing(record) ? 1 : 0;
  CountLookups();
  IssueAhead();
}

void ColdStaging::EndStep() {
  MarkUsed();
  in_step_ = false;
  missing_ = 0;
  failed_ = false;
}

// Reads in the order of need, group by group, up to the window; past the last group come the first
// ones again, for the next step.
void ColdStaging::IssueAhead() {
  const auto count = static_cast<int64_t>(step_.size());
  if (count == 0) return;
  const int64_t horizon = (int64_t{group_} + window_) * count;
  while (next_issue_ < horizon) {
    const auto group = static_cast<int32_t>(next_issue_ / count % layout_.groups());
    if (!Fetch(step_[next_issue_ % count], group)) return;
    ++next_issue_;
  }
}

void ColdStaging::CheckInvariants() const {
  units_.slots().CheckInvariants();
  for (uint32_t i = 0; i < records_.size(); ++i) {
    const Record& entry = records_[i];
    int32_t held = 0;
    for (int32_t group = 0; group < layout_.groups(); ++group) {
      const UnitId unit = UnitAt(SlotId(i), group);
      if (!unit.valid()) continue;
      ++held;
      STRATA_CHECK(unit_states_[unit.value()].record == SlotId(i));
      STRATA_CHECK(unit_states_[unit.value()].group == group);
    }
    STRATA_CHECK(held == entry.units);
    STRATA_CHECK(held == 0 || entry.place != Place::kNone);
  }
  STRATA_CHECK(resident_records() <= ResidentTarget());
  int32_t cancelled = 0;
  int32_t used = 0;
  for (uint32_t i = 0; i < unit_states_.size(); ++i) {
    if (!units_.slots().IsUsed(UnitId(i))) {
      STRATA_CHECK(!unit_states_[i].record.valid());
      continue;
    }
    ++used;
    cancelled += unit_states_[i].record.valid() ? 0 : 1;
  }
  STRATA_CHECK(used == units_used() && cancelled <= reads_in_flight_);
}

}  // namespace strata
