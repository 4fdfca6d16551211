#include "tiering/residency.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tiering/status_payload.h"

namespace strata {

using State = BlockInfo::State;
using Move = BlockInfo::Move;

Residency::Residency(const TierOptions& options, const TierPlan* plan,
                     const TierEnvironment& environment, std::vector<SequenceState>* sequences,
                     Admission* admission, PagePool<SlotId> hot, PagePool<SlotId> warm)
    : plan_(*plan),
      environment_(environment),
      cold_enabled_(options.cold_bytes > 0),
      sequences_(sequences),
      admission_(admission),
      // Every block holds at least one slot.
      directory_(plan->slots[0] + plan->slots[1] + plan->slots[2]),
      hot_(std::move(hot)),
      warm_(std::move(warm)),
      encode_took_(plan->slots[1]),
      write_took_(plan->slots[2]),
      block_of_record_(plan->slots[2]) {
  for (int32_t i = 0; i < kEncodesMax; ++i) {
    encodes_.push_back(std::make_unique<EncodeJob>());
    idle_encodes_.push_back(encodes_.back().get());
  }
  written_.reserve(std::max(plan->write_buffers, 1));
}

Residency::~Residency() = default;

absl::StatusOr<std::unique_ptr<Residency>> Residency::Create(const TierOptions& options,
                                                             const TierPlan* plan,
                                                             const PageCodec* codec,
                                                             const TierEnvironment& environment,
                                                             std::vector<SequenceState>* sequences,
                                                             Admission* admission) {
  DeviceMemory* memory = environment.memory;
  STRATA_ASSIGN_OR_RETURN(Buffer hot, memory->AllocateDevice(plan->slots[0] * plan->hot.bytes()));
  STRATA_ASSIGN_OR_RETURN(Buffer warm, memory->AllocatePinned(plan->slots[1] * plan->warm.bytes()));
  std::unique_ptr<Residency> residency(
      new Residency(options, plan, environment, sequences, admission,
                    {plan->slots[0], plan->hot.bytes(), std::move(hot)},
                    {plan->slots[1], plan->warm.bytes(), std::move(warm)}));
  if (options.cold_bytes > 0) {
    STRATA_RETURN_IF_ERROR(residency->OpenCold(options));
  }
  residency->mover_ =
      std::make_unique<Mover>(codec, Mover::Layouts{&plan->hot, &plan->warm, &plan->record},
                              residency->store_.get(), &residency->completions_);
  return residency;
}

const std::byte* Residency::BytesOf(const BlockInfo& block) {
  STRATA_CHECK(block.home != Tier::kCold);
  return Pool(block.home).At(block.home_slot());
}

std::byte* Residency::HotBytes(const BlockInfo& block) {
  STRATA_CHECK(block.home == Tier::kHot);
  return hot_.At(block.home_slot());
}

// --- slots ---

bool Residency::TakeSlot(Tier tier, SequenceState* sequence, SlotId* slot) {
  SlotAccount& account = sequence->accounts[IndexOf(tier)];
  if (Pool(tier).slots().free() == 0) return false;
  if (!admission_->ledger(tier).Take(1, &account)) return false;
  STRATA_CHECK(Pool(tier).slots().Allocate(1, slot));
  NotePeak(tier, sequence);
  return true;
}

void Residency::NotePeak(Tier tier, SequenceState* sequence) {
  uint64_t& peak = sequence->counters.peak_slots[IndexOf(tier)];
  peak = std::max<uint64_t>(peak, sequence->accounts[IndexOf(tier)].used);
}

absl::Status Residency::Exhausted(Tier tier, const SequenceState& sequence) const {
  const SlotLedger& ledger = admission_->ledger(tier);
  const SlotAccount& account = sequence.accounts[IndexOf(tier)];
  return WithSequence(
      absl::ResourceExhaustedError(
          absl::StrCat("sequence ", sequence.handle, " needs another block of the ", TierName(tier),
                       " tier: it holds ", account.used, " and reserved ", account.reserved, ", ",
                       ledger.unpromised(), " of ", ledger.capacity(), " are promised to nobody",
                       cold_degraded() ? "; the cold tier takes no writes" : "")),
      sequence.handle);
}

// Slots come back when the mover is done with those of released sequences, and when the disk has
// taken blocks out of the warm tier. Gives up when neither is to be expected, or nothing has come
// for as long as patience lasts.
absl::Status Residency::WaitForSlot(Tier tier, SequenceState* sequence, SlotId* slot) {
  if (TakeSlot(tier, sequence, slot)) return absl::OkStatus();
  const auto begun = std::chrono::steady_clock::now();
  auto progress = begun;
  bool taken = false;
  while (!taken) {
    const bool encoding = idle_encodes_.size() < encodes_.size();
    const bool writing = writer_ != nullptr && writer_->Progressing();
    const auto now = std::chrono::steady_clock::now();
    if ((!encoding && !writing) || now - progress > environment_.patience) break;
    // Short, because the byte rate may allow the next write without anything coming in.
    if (WaitAndDrain(/*in_step=*/false, std::chrono::milliseconds(20))) progress = now;
    taken = TakeSlot(tier, sequence, slot);
  }
  counters_.move_wait.Observe(std::chrono::steady_clock::now() - begun);
  return taken ? absl::OkStatus() : Exhausted(tier, *sequence);
}

void Residency::FreeSlot(Tier tier, SlotId slot, SequenceState* owner) {
  Pool(tier).slots().Release(slot);
  SlotLedger& ledger = admission_->ledger(tier);
  if (owner != nullptr) {
    ledger.Return(&owner->accounts[IndexOf(tier)]);
  } else {
    ledger.ReturnOrphan();
  }
}

// --- growing ---

absl::Status Residency::Extend(SequenceState* sequence, int32_t blocks) {
  while (sequence->table.size() < blocks) {
    SlotId slot;
    STRATA_RETURN_IF_ERROR(WaitForSlot(Tier::kHot, sequence, &slot));
    const auto owner = static_cast<uint32_t>(sequence - sequences_->data());
    sequence->table.Push(directory_.Create(owner, sequence->table.size(), slot));
  }
  return absl::OkStatus();
}

void Residency::Append(SequenceState* sequence, int32_t tokens) {
  tokens_[IndexOf(Tier::kHot)] += tokens;
  while (tokens > 0) {
    const int32_t room = kBlockTokens - sequence->tokens % kBlockTokens;
    const int32_t count = std::min(tokens, room);
    directory_.Append(sequence->table[BlockOfToken(sequence->tokens)], count);
    sequence->tokens += count;
    tokens -= count;
  }
}

// --- hot to warm ---

void Residency::StartEncode(BlockId id, SlotId target) {
  directory_.BeginMove(id, target);
  EncodeJob* job = idle_encodes_.back();
  idle_encodes_.pop_back();
  job->block = id;
  job->source = HotBytes(directory_.Get(id));
  job->target = warm_.At(target);
  STRATA_CHECK(mover_->Encode(job));  // its queue holds every job and write buffer there is
}

// Everything that the piece at `piece_block` reads below hot and that is sealed, as far as warm
// slots go.
void Residency::StartEncodes(SequenceState* sequence, int32_t piece_block) {
  while (sequence->encode_next < sequence->table.size() &&
         sequence->policy.TierOf(sequence->encode_next, piece_block) != Tier::kHot) {
    const BlockId id = sequence->table[sequence->encode_next];
    SlotId target;
    if (directory_.Get(id).state != State::kSealed || !HasEncodeJob() ||
        !TakeSlot(Tier::kWarm, sequence, &target)) {
      return;
    }
    StartEncode(id, target);
    ++sequence->encode_next;
  }
}

void Residency::EncodeAhead(SequenceState* sequence) {
  const int32_t next_piece = sequence->piece_block + plan_.piece_blocks;
  if (next_piece <= LastPieceBlock(sequence->max_tokens, plan_.piece_blocks)) {
    StartEncodes(sequence, next_piece);
  }
}

// The piece has begun and the block is not even on its way: get it a slot, waiting for the disk to
// make room if need be.
absl::Status Residency::StartDueEncode(SequenceState* sequence, BlockId id) {
  SlotId target;
  STRATA_RETURN_IF_ERROR(WaitForSlot(Tier::kWarm, sequence, &target));
  while (!HasEncodeJob()) WaitAndDrain(/*in_step=*/false, environment_.patience);
  StartEncode(id, target);
  ++sequence->encode_next;
  return absl::OkStatus();
}

void Residency::CommitEncoded(SequenceState* sequence, BlockId id) {
  const SlotId source = directory_.CommitMove(id);
  FreeSlot(Tier::kHot, source, sequence);
  tokens_[IndexOf(Tier::kHot)] -= kBlockTokens;
  tokens_[IndexOf(Tier::kWarm)] += kBlockTokens;
  counters_.demoted_pages[0] += plan_.warm.layers();
  CountLink(Link::kHotToWarm, plan_.warm.bytes(), plan_.warm.layers(),
            encode_took_[directory_.Get(id).home_slot().value()], sequence);
}

absl::Status Residency::CommitDue(SequenceState* sequence, int32_t piece_block) {
  StartEncodes(sequence, piece_block);
  while (sequence->leave_next < sequence->table.size() &&
         sequence->policy.TierOf(sequence->leave_next, piece_block) != Tier::kHot) {
    const BlockId id = sequence->table[sequence->leave_next];
    if (sequence->encode_next == sequence->leave_next) {
      STRATA_RETURN_IF_ERROR(StartDueEncode(sequence, id));
    }
    if (directory_.Get(id).move == Move::kCopying) {
      const auto begun = std::chrono::steady_clock::now();
      // The mover needs nothing but the CPU: it always comes to an end.
      while (directory_.Get(id).move == Move::kCopying) {
        WaitAndDrain(/*in_step=*/false, environment_.patience);
      }
      counters_.move_wait.Observe(std::chrono::steady_clock::now() - begun);
    }
    if (!directory_.Get(id).pinned_hot) CommitEncoded(sequence, id);
    ++sequence->leave_next;
  }
  sequence->piece_block = piece_block;
  return absl::OkStatus();
}

void Residency::OnEncoded(EncodeJob* job) {
  const BlockId id = job->block;
  directory_.FinishCopy(id);
  idle_encodes_.push_back(job);
  const BlockInfo& block = directory_.Get(id);
  if (block.state == State::kDropped) {
    Reclaim(id, nullptr);
    return;
  }
  SequenceState& owner = OwnerOf(block);
  counters_.quantize.Observe(job->took);
  if (job->refused) {
    FreeSlot(Tier::kWarm, directory_.AbortMove(id), &owner);
    directory_.PinHot(id);
    ++counters_.refused_blocks;
    return;
  }
  encode_took_[block.slots[IndexOf(Tier::kWarm)].value()] = job->took;
  if (job->error.taken) {
    owner.counters.k_relative_error = job->error.warm.k;
    owner.counters.v_relative_error = job->error.warm.v;
    counters_.k_relative_error = {0, job->error.warm.k, job->error.cold.k};
    counters_.v_relative_error = {0, job->error.warm.v, job->error.cold.v};
  }
}

// --- dropping ---

void Residency::DropAll(SequenceState* sequence) {
  for (const BlockId id : sequence->table.blocks()) Drop(sequence, id);
  sequence->StartOver();
  if (writer_ != nullptr) writer_->Pump();
}

void Residency::Drop(SequenceState* sequence, BlockId id) {
  const BlockInfo& block = directory_.Get(id);
  tokens_[IndexOf(block.home)] -= block.tokens;
  if (block.tokens > 0) {
    counters_.tiers[IndexOf(block.home)].dropped_pages += plan_.hot.layers();
  }
  if (directory_.Drop(id)) {
    Reclaim(id, sequence);
    return;
  }
  // A copy is in flight: its slots outlive the owner.
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (!block.slots[tier].valid()) continue;
    admission_->ledger(static_cast<Tier>(tier)).Orphan(&sequence->accounts[tier]);
  }
}

// Takes back the slots of a dropped block that nobody copies any more. `owner`: whose account they
// are on, null for orphans. A record comes free only when its erasure is done.
void Residency::Reclaim(BlockId id, SequenceState* owner) {
  const BlockInfo block = directory_.Get(id);
  directory_.Remove(id);
  for (Tier tier : {Tier::kHot, Tier::kWarm}) {
    const SlotId slot = block.slots[IndexOf(tier)];
    if (slot.valid()) FreeSlot(tier, slot, owner);
  }
  const SlotId record = block.slots[IndexOf(Tier::kCold)];
  if (!record.valid()) return;
  if (owner != nullptr) {
    admission_->ledger(Tier::kCold).Orphan(&owner->accounts[IndexOf(Tier::kCold)]);
  }
  if (block.home == Tier::kCold) staging_->Remove(record);
  block_of_record_[record.value()] = BlockId();
  writer_->Erase(record);
}

// --- completions ---

void Residency::Drain(bool in_step) { Dispatch(completions_.TakeAll(), in_step); }

bool Residency::WaitAndDrain(bool in_step, std::chrono::nanoseconds timeout) {
  Completion* all = completions_.WaitAll(timeout);
  Dispatch(all, in_step);
  return all != nullptr;
}

void Residency::Dispatch(Completion* all, bool in_step) {
  while (all != nullptr) {
    Completion* done = std::exchange(all, all->next);
    switch (done->kind) {
      case Completion::Kind::kEncoded:
        OnEncoded(static_cast<EncodeJob*>(done));
        break;
      case Completion::Kind::kWritten:
        OnWritten(static_cast<ColdStore::WriteOp*>(done));
        break;
      case Completion::Kind::kErased:
        OnErased(static_cast<ColdStore::EraseOp*>(done));
        break;
      case Completion::Kind::kRead:
        OnRead(static_cast<ColdStore::ReadOp*>(done));
        break;
    }
  }
  if (!cold_enabled_) return;
  if (!in_step) CommitWritten();
  writer_->Pump();
  PumpWrites();
}

void Residency::CountLink(Link link, uint64_t bytes, int32_t layers, std::chrono::nanoseconds took,
                          SequenceState* sequence) {
  const uint64_t f16_page = plan_.hot.bytes() / plan_.hot.layers();
  const int index = static_cast<int>(link);
  for (LinkCounters* counters : {&counters_.links[index], &sequence->counters.links[index]}) {
    counters->bytes += bytes;
    counters->f16_bytes += f16_page * layers;
    counters->pages += layers;
    counters->nanoseconds += took.count();
  }
}

}  // namespace strata
