#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "cache/ids.h"
#include "cache/layout/record_layout.h"
#include "cache/page_pool.h"
#include "tiering/cold_store.h"

namespace strata {

// Brings cold pages into DRAM, in their own bits, for attention to read. A unit is one layer group
// of one record. Every decode step scans all cold blocks of its sequences, layer by layer: for such
// a cyclic scan LRU keeps exactly what is not needed next, so blocks are split once and for all
// into
//   resident   all their units stay once they were read;
//   streaming  units are read ahead of the layer that needs them, over the last layers of a step
//              for the first layers of the next, and dropped when their layers have passed.
// Engine thread; the store's operations complete elsewhere and come back through OnRead.
//   G1: resident blocks have room for all their units, and streaming blocks together for those of
//   two groups (or of all groups if there are fewer), given that admission reserved as much.
class ColdStaging {
 public:
  ColdStaging(const RecordLayout* layout, PagePool<UnitId> units, ColdStore* store);

  // A record was published whose block is now read from here. Not during a step.
  void Add(SlotId record);
  // Nobody will read it any more; not during a step either. Reads in flight finish into units
  // nobody sees.
  void Remove(SlotId record);

  // A step will read these records, each layer group in turn. Starts reading ahead.
  void BeginStep(absl::Span<const SlotId> records);
  // The step reads group `group` next; units of earlier groups are free to go.
  void EnterGroup(int32_t group);
  // Whether entering it lets units go that earlier layers of this step have read.
  bool DropsOnEntering(int32_t group) const {
    return group > 0 && window_ < layout_.groups() && !step_.empty();
  }
  // Units of the entered group that are still to come.
  int32_t missing() const { return missing_; }
  // A record of this step could not be read.
  bool failed() const { return failed_; }
  bool IsMissing(SlotId record) const;
  void EndStep();

  // A read came out of the completion queue. Returns whether the record turned out bad.
  bool OnRead(ColdStore::ReadOp* op);
  // Gives up on every unit of the entered group that has not come: calls lost(record) for each.
  template <typename Lost>
  void GiveUp(const Lost& lost) {
    for (const SlotId record : step_) {
      if (!IsMissing(record)) continue;
      MarkFailed(record);
      lost(record);
    }
  }

  // The unit that holds `group` of the record; it must have come.
  const std::byte* Unit(SlotId record, int32_t group);

  int32_t reads_in_flight() const { return reads_in_flight_; }
  int32_t resident_records() const { return static_cast<int32_t>(resident_.size()); }
  int32_t known_records() const {
    return static_cast<int32_t>(resident_.size() + streaming_.size());
  }
  // Pages that steps wanted, group by group as they were entered, and those that were in memory
  // because an earlier step had them read; the difference came from the disk.
  uint64_t page_lookups() const { return page_lookups_; }
  uint64_t page_hits() const { return page_hits_; }
  int32_t units_used() const { return units_.slots().used(); }
  int32_t unit_capacity() const { return units_.slots().capacity(); }
  void CheckInvariants() const;

 private:
  enum class Place : uint8_t { kNone, kResident, kStreaming };
  struct Record {
    Place place = Place::kNone;
    bool failed = false;
    bool in_step = false;
    uint32_t index = 0;  // in resident_ or streaming_
    int32_t units = 0;   // it holds, reads in flight included
  };
  struct UnitState {
    SlotId record;  // invalid: cancelled, or the unit is free
    int32_t group = 0;
    bool ready = false;
    bool used = false;  // a step has read it since it came from the disk
  };

  UnitId& UnitAt(SlotId record, int32_t group);
  UnitId UnitAt(SlotId record, int32_t group) const;
  bool Ready(SlotId record, int32_t group) const;
  std::vector<SlotId>& ListOf(Place place) {
    return place == Place::kResident ? resident_ : streaming_;
  }

  void PutInto(Place place, SlotId record);
  void TakeOut(SlotId record);
  int32_t ResidentTarget() const;
  void Rebalance();

  void CountLookups();
  void MarkUsed();
  void IssueAhead();
  bool Fetch(SlotId record, int32_t group);
  void Evict(SlotId record, int32_t group);
  void EvictLeftovers();
  void MarkFailed(SlotId record);

  const RecordLayout& layout_;
  ColdStore* const store_;
  PagePool<UnitId> units_;
  std::vector<UnitState> unit_states_;    // by unit
  std::vector<ColdStore::ReadOp> reads_;  // by unit: at most one read of each is in flight
  std::vector<Record> records_;           // by record
  std::vector<UnitId> unit_of_;           // [record][group]
  std::vector<SlotId> resident_, streaming_;
  int32_t reads_in_flight_ = 0;

  // The step under way, or the last one: its order is the best guess at the next one's.
  std::vector<SlotId> step_;
  int32_t group_ = 0;   // entered
  int32_t window_ = 1;  // groups read ahead, the entered one included
  bool in_step_ = false;
  int64_t next_issue_ = 0;  // counts (group, record) pairs from the step's beginning
  int32_t missing_ = 0;
  bool failed_ = false;
  uint64_t page_lookups_ = 0;
  uint64_t page_hits_ = 0;
};

}  // namespace strata
