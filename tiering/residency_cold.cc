// The cold half of Residency: writing warm blocks to the store and reading them back.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "tiering/residency.h"

namespace strata {

using State = BlockInfo::State;
using Move = BlockInfo::Move;

absl::Status Residency::OpenCold(const TierOptions& options) {
  ColdStoreOptions store;
  store.path = options.cold_path;
  store.bytes_max = options.cold_bytes;
  store.identity.layers = static_cast<uint32_t>(options.geometry.layers);
  store.identity.kv_heads = static_cast<uint32_t>(options.geometry.kv_heads);
  store.identity.head_dim = static_cast<uint32_t>(options.geometry.head_dim);
  store.identity.model_fingerprint = options.model_fingerprint;
  store.identity.basis_hash = options.basis_hash;
  store.identity.unit_bytes = static_cast<uint32_t>(options.cold_unit_bytes);
  store.formats = options.formats;
  store.layout = &plan_.record;
  store.io_engine = options.io_engine;
  store.io_depth = options.io_depth_max;
  store.direct = environment_.direct_io;
  store.make_io = environment_.make_io;
  STRATA_ASSIGN_OR_RETURN(store_, ColdStore::Open(std::move(store), &completions_));
  ColdWriter::Options writer;
  writer.buffers = plan_.write_buffers;
  writer.bytes_per_second = options.disk_write_bytes_per_s;
  writer.patience = environment_.patience;
  STRATA_ASSIGN_OR_RETURN(writer_, ColdWriter::Create(store_.get(), writer, environment_.clock));
  const size_t unit_bytes = plan_.record.largest_group_bytes();
  STRATA_ASSIGN_OR_RETURN(Buffer memory,
                          environment_.memory->AllocatePinned(plan_.staging_units * unit_bytes));
  PagePool<UnitId> units(plan_.staging_units, unit_bytes, std::move(memory));
  staging_ = std::make_unique<ColdStaging>(&plan_.record, std::move(units), store_.get());
  return absl::OkStatus();
}

// --- warm to cold ---

// Goes round the sequences, a block each, so that none waits for another's long prompt.
void Residency::PumpWrites() {
  bool started = true;
  while (started && writer_->CanBegin()) {
    started = false;
    for (SequenceState& sequence : *sequences_) {
      if (!sequence.live) continue;
      while (sequence.write_next < sequence.leave_next &&
             sequence.policy.TierOf(sequence.write_next, sequence.piece_block) == Tier::kCold) {
        const BlockId id = sequence.table[sequence.write_next];
        const BlockInfo& block = directory_.Get(id);
        const bool waiting = block.home == Tier::kWarm && block.move == Move::kNone;
        if (waiting && !StartWrite(&sequence, id)) break;
        ++sequence.write_next;
        started |= waiting;
        if (waiting) break;
      }
    }
  }
}

bool Residency::StartWrite(SequenceState* sequence, BlockId id) {
  SlotAccount& account = sequence->accounts[IndexOf(Tier::kCold)];
  if (!writer_->CanBegin() || !admission_->ledger(Tier::kCold).Take(1, &account)) return false;
  ColdStore::WriteOp* op = writer_->Begin(id, BytesOf(directory_.Get(id)));
  STRATA_CHECK(op != nullptr);
  NotePeak(Tier::kCold, sequence);
  directory_.BeginMove(id, op->record);
  STRATA_CHECK(mover_->Write(op));
  return true;
}

void Residency::OnWritten(ColdStore::WriteOp* op) {
  const BlockId id = op->block;
  const SlotId record = op->record;
  directory_.FinishCopy(id);
  const std::chrono::nanoseconds took = op->took;
  const ColdWriter::Outcome outcome = writer_->Finish(op);
  SlotLedger& ledger = admission_->ledger(Tier::kCold);
  const bool orphan = directory_.Get(id).state == State::kDropped;
  if (outcome == ColdWriter::Outcome::kPublished) {
    if (orphan) {
      Reclaim(id, nullptr);
      return;
    }
    write_took_[record.value()] = took;
    written_.push_back(id);
    return;
  }
  // The block stays in its warm slot; the next round tries it again.
  directory_.AbortMove(id);
  SequenceState& owner = OwnerOf(directory_.Get(id));
  if (!orphan) {
    owner.write_next = std::min(owner.write_next, directory_.Get(id).index);
    ledger.Orphan(&owner.accounts[IndexOf(Tier::kCold)]);
  }
  if (outcome == ColdWriter::Outcome::kFailed) ledger.ReturnOrphan();
  if (orphan) Reclaim(id, nullptr);
}

void Residency::CommitWritten() {
  for (const BlockId id : written_) {
    SequenceState& owner = OwnerOf(directory_.Get(id));
    FreeSlot(Tier::kWarm, directory_.CommitMove(id), &owner);
    const SlotId record = directory_.Get(id).home_slot();
    staging_->Add(record);
    block_of_record_[record.value()] = id;
    tokens_[IndexOf(Tier::kWarm)] -= kBlockTokens;
    tokens_[IndexOf(Tier::kCold)] += kBlockTokens;
    counters_.demoted_pages[1] += plan_.record.layers();
    CountLink(Link::kWarmToCold, plan_.record.bytes(), plan_.record.layers(),
              write_took_[record.value()], &owner);
  }
  written_.clear();
}

void Residency::OnErased(ColdStore::EraseOp* op) {
  if (writer_->FinishErase(op)) admission_->ledger(Tier::kCold).ReturnOrphan();
}

// --- reading back ---

void Residency::OnRead(ColdStore::ReadOp* op) {
  const SlotId record = op->record;
  const BlockId id = block_of_record_[record.value()];
  if (op->result == ColdStore::Result::kOk && id.valid()) {
    const RecordLayout::Group& group = plan_.record.group(op->group);
    CountLink(Link::kColdToHot, group.bytes, group.layers, op->took, &OwnerOf(directory_.Get(id)));
  }
  const bool corrupt = op->result == ColdStore::Result::kCorrupt;
  const bool is_short = op->result == ColdStore::Result::kIoError && op->error == 0;
  if (!staging_->OnRead(op)) return;
  if (corrupt) ++counters_.integrity_failures[static_cast<int>(Damage::kChecksum)];
  if (is_short) ++counters_.integrity_failures[static_cast<int>(Damage::kShort)];
  // The wrong bytes may be an accident of this record; no bytes are the disk's or the file's fault.
  if (!corrupt) writer_->NoteReadError();
  MarkLost(record);
}

void Residency::MarkLost(SlotId record) {
  OwnerOf(directory_.Get(block_of_record_[record.value()])).damaged = true;
}

// --- looking ---

bool Residency::Idle() const {
  const bool encoding = idle_encodes_.size() < encodes_.size();
  return !encoding && (writer_ == nullptr || !writer_->InFlight()) &&
         (staging_ == nullptr || staging_->reads_in_flight() == 0);
}

void Residency::AddTo(CacheSnapshot* snapshot) const {
  CacheSnapshot& s = *snapshot;
  s.links = counters_.links;
  std::copy(std::begin(counters_.demoted_pages), std::end(counters_.demoted_pages),
            std::begin(s.demoted_pages));
  s.integrity_failures = counters_.integrity_failures;
  s.quantize = counters_.quantize;
  s.move_wait = counters_.move_wait;
  s.refused_blocks = counters_.refused_blocks;
  s.k_relative_error = counters_.k_relative_error;
  s.v_relative_error = counters_.v_relative_error;
  s.cold_degraded = cold_degraded();
  const int32_t layers = plan_.hot.layers();
  for (int i = 0; i < kTierCount; ++i) {
    TierSnapshot& tier = s.tiers[i];
    const uint64_t slot_bytes = plan_.SlotBytes(static_cast<Tier>(i));
    tier.capacity_bytes = plan_.slots[i] * slot_bytes;
    tier.reserved_bytes = admission_->ledger(static_cast<Tier>(i)).reserved() * slot_bytes;
    tier.tokens = tokens_[i];
    tier.dropped_pages = counters_.tiers[i].dropped_pages;
    int32_t used = i == 0 ? hot_.slots().used() : warm_.slots().used();
    if (static_cast<Tier>(i) == Tier::kCold) {
      used = writer_ == nullptr ? 0 : writer_->published();
      tier.free_pages = uint64_t{1} *
                        (plan_.slots[i] - (writer_ == nullptr ? 0 : writer_->records_taken())) *
                        layers;
    } else {
      tier.free_pages = uint64_t{1} * (plan_.slots[i] - used) * layers;
    }
    tier.used_bytes = used * slot_bytes;
    tier.pages = uint64_t{1} * used * layers;
  }
  s.io_engine = "none";
  if (store_ == nullptr) return;
  s.tiers[IndexOf(Tier::kCold)].lookups = staging_->page_lookups();
  s.tiers[IndexOf(Tier::kCold)].hits = staging_->page_hits();
  const IoEngine::Counters io = store_->io_counters();
  s.io_engine = std::string(store_->io_engine());
  s.cold_note = store_->note();
  s.io_read_errors = store_->read_errors();
  s.io_write_errors = store_->write_errors();
  s.io_read_latency = io.read_latency;
  s.io_write_latency = io.write_latency;
  s.io_reads_submitted = io.reads_submitted;
  s.io_reads_completed = io.reads_completed;
  s.io_writes_submitted = io.writes_submitted;
  s.io_writes_completed = io.writes_completed;
}

void Residency::CheckInvariants() const {
  directory_.CheckInvariants();
  hot_.slots().CheckInvariants();
  warm_.slots().CheckInvariants();
  std::array<int32_t, kTierCount> slots{};
  std::array<uint64_t, kTierCount> tokens{};
  int32_t known = 0;
  directory_.ForEach([&](BlockId, const BlockInfo& block) {
    for (int i = 0; i < kTierCount; ++i) slots[i] += block.slots[i].valid() ? 1 : 0;
    known += block.home == Tier::kCold ? 1 : 0;
    if (block.state != State::kDropped) tokens[IndexOf(block.home)] += block.tokens;
  });
  STRATA_CHECK(slots[0] == hot_.slots().used());
  STRATA_CHECK(slots[1] == warm_.slots().used());
  STRATA_CHECK(tokens == tokens_);
  std::array<int32_t, kTierCount> charged{};
  for (int i = 0; i < kTierCount; ++i) {
    const SlotLedger& ledger = admission_->ledger(static_cast<Tier>(i));
    charged[i] = ledger.orphans();
    int32_t promised = ledger.orphans();
    for (const SequenceState& sequence : *sequences_) {
      charged[i] += sequence.accounts[i].used;
      promised += std::max(sequence.accounts[i].used, sequence.accounts[i].reserved);
    }
    STRATA_CHECK(promised == ledger.promised());  // L1
  }
  STRATA_CHECK(charged[0] == slots[0] && charged[1] == slots[1]);
  if (writer_ == nullptr) return;
  writer_->records().CheckInvariants();
  STRATA_CHECK(charged[2] == writer_->records_taken());  // records being erased are orphans
  STRATA_CHECK(staging_->known_records() == known);
  staging_->CheckInvariants();
}

}  // namespace strata
