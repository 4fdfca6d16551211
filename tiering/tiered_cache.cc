#include "tiering/tiered_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/memory_limits.h"
#include "base/status_macros.h"
#include "tiering/status_payload.h"
#include "tiering/tiered_cache_impl.h"

namespace strata {
namespace {

// A handle is (admission number, index + 1): a stale one is never taken for a live one.
SequenceHandle MakeHandle(uint32_t admission, size_t index) {
  return uint64_t{admission} << 32 | static_cast<uint32_t>(index + 1);
}
size_t IndexOfHandle(SequenceHandle handle) { return (handle & 0xffffffffu) - 1; }

// Of a device with memory of its own.
absl::Status CheckDevice(const TierOptions& options, const DeviceMemory& device) {
  STRATA_ASSIGN_OR_RETURN(const DeviceMemory::Available memory, device.AvailableDevice());
  if (options.hot_bytes <= memory.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("hot_bytes ", options.hot_bytes, " exceed the ", memory.bytes,
                   " bytes of device memory that are free (", memory.bound_by, ")"));
}

absl::Status CheckMemory(const TierOptions& options, const DeviceMemory& device) {
  if (!device.host_accessible()) STRATA_RETURN_IF_ERROR(CheckDevice(options, device));
  STRATA_ASSIGN_OR_RETURN(const AvailableBytes memory, AvailableMemory());
  const size_t hot = device.host_accessible() ? options.hot_bytes : 0;
  const size_t staging = options.cold_bytes > 0 ? options.staging_bytes : 0;
  const size_t parts[] = {hot, options.warm_bytes, staging};
  size_t fits = memory.bytes;
  for (const size_t part : parts) {
    if (part <= fits) {
      fits -= part;
      continue;
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("hot_bytes ", hot, ", warm_bytes ", options.warm_bytes, " and staging_bytes ",
                     staging, " together exceed the ", memory.bytes,
                     " bytes of memory that fit (bounded by ", memory.bound_by, ")"));
  }
  return absl::OkStatus();
}

size_t KBytes(const PageFormat& format) {
  const size_t lo_plane = format.k == KvKind::kI4 ? format.PlaneBytes() : 0;
  return (format.KHeadBytes() + lo_plane) * format.kv_heads;
}

struct Bits {
  double k = 0;
  double v = 0;
  double mean() const { return (k + v) / 2; }  // K and V have as many values
};

// Bits a value of what attention reads: a record's padding and kept REFINE do not count.
Bits BitsPerValue(const TierPlan& plan, Tier tier, const KvGeometry& geometry) {
  size_t k_bytes = 0;
  size_t v_bytes = 0;
  for (int32_t layer = 0; layer < geometry.layers; ++layer) {
    const PageFormat& format = tier == Tier::kHot    ? plan.hot.format(layer)
                               : tier == Tier::kWarm ? plan.warm.format(layer)
                                                     : plan.record.format(layer);
    k_bytes += KBytes(format);
    v_bytes += format.Bytes() - KBytes(format);
  }
  const double values = static_cast<double>(geometry.ValuesPerToken() * kBlockTokens) / 2;
  return {8.0 * static_cast<double>(k_bytes) / values, 8.0 * static_cast<double>(v_bytes) / values};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TieredCache>> TieredCache::Create(const TierOptions& options,
                                                                 const PageCodec* codec,
                                                                 DeviceMemory* memory) {
  TierEnvironment environment;
  environment.memory = memory;
  return TieredCacheImpl::Create(options, codec, environment);
}

PositionalPolicy TieredCache::DefaultPolicy(const TierOptions& options) {
  return TierPlan::Make(options).DefaultPolicy(options);
}

std::array<size_t, kTierCount> TieredCache::BlockBytes(const TierOptions& options) {
  const TierPlan plan = TierPlan::Make(options);
  return {plan.hot.bytes(), plan.warm.bytes(), plan.record.bytes()};
}

TieredCacheImpl::TieredCacheImpl(const TierOptions& options, const TierPlan& plan,
                                 DeviceMemory* memory)
    : options_(options),
      plan_(plan),
      memory_(memory),
      sequences_(options.max_sequences),
      admission_(&plan_) {}

absl::StatusOr<std::unique_ptr<TieredCacheImpl>> TieredCacheImpl::Create(
    const TierOptions& options, const PageCodec* codec, const TierEnvironment& environment) {
  STRATA_RETURN_IF_ERROR(options.Validate());
  const TierPlan plan = TierPlan::Make(options);
  STRATA_RETURN_IF_ERROR(plan.CheckMinimum(options));
  STRATA_RETURN_IF_ERROR(CheckMemory(options, *environment.memory));
  std::unique_ptr<TieredCacheImpl> cache(new TieredCacheImpl(options, plan, environment.memory));
  STRATA_ASSIGN_OR_RETURN(cache->residency_,
                          Residency::Create(cache->options_, &cache->plan_, codec, environment,
                                            &cache->sequences_, &cache->admission_));
  cache->view_ =
      std::make_unique<StepView>(&cache->plan_, &cache->options_, cache->residency_.get());
  return cache;
}

// --- sequences ---

SequenceState& TieredCacheImpl::Find(SequenceHandle handle) {
  return const_cast<SequenceState&>(std::as_const(*this).Find(handle));
}

const SequenceState& TieredCacheImpl::Find(SequenceHandle handle) const {
  STRATA_CHECK(IndexOfHandle(handle) < sequences_.size());
  const SequenceState& sequence = sequences_[IndexOfHandle(handle)];
  STRATA_CHECK(sequence.live && sequence.handle == handle);
  return sequence;
}

absl::StatusOr<SequenceHandle> TieredCacheImpl::Admit(int32_t max_tokens,
                                                      const PositionalPolicy& policy) {
  if (max_tokens < 1 || max_tokens > options_.max_context) {
    return absl::OutOfRangeError(
        absl::StrCat("a sequence of ", max_tokens, " tokens; 1 to ", options_.max_context));
  }
  const auto free = std::find_if(sequences_.begin(), sequences_.end(),
                                 [](const SequenceState& s) { return !s.live; });
  if (free == sequences_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(sequences_.size(), " sequences are admitted already, the most there may be"));
  }
  SequenceState sequence;
  STRATA_RETURN_IF_ERROR(
      admission_.Reserve(max_tokens, policy, !residency_->cold_degraded(), &sequence));
  sequence.live = true;
  sequence.handle = MakeHandle(++admissions_, free - sequences_.begin());
  sequence.policy = policy;
  sequence.max_tokens = max_tokens;
  sequence.table.Reserve(BlocksForTokens(max_tokens));
  sequence.StartOver();
  *free = std::move(sequence);
  return free->handle;
}

void TieredCacheImpl::Release(SequenceHandle handle) {
  STRATA_CHECK(!in_step_);
  SequenceState& sequence = Find(handle);
  residency_->DropAll(&sequence);
  admission_.EndReservation(&sequence);
  sequence.live = false;
}

void TieredCacheImpl::Reset(SequenceHandle handle) {
  STRATA_CHECK(!in_step_);
  residency_->DropAll(&Find(handle));
}

std::vector<SequenceHandle> TieredCacheImpl::TakeDamaged() {
  std::vector<SequenceHandle> damaged;
  for (SequenceState& sequence : sequences_) {
    if (!sequence.live || !sequence.damaged || sequence.reported) continue;
    sequence.reported = true;
    damaged.push_back(sequence.handle);
  }
  return damaged;
}

// --- a step ---

absl::Status TieredCacheImpl::CheckSlice(const StepSlice& slice, SequenceState** sequence) {
  SequenceState& found = Find(slice.sequence);
  const int64_t end = int64_t{slice.first} + slice.tokens;
  if (slice.first != found.tokens || slice.tokens < 1 || end > found.max_tokens) {
    return WithSequence(
        absl::InvalidArgumentError(absl::StrCat(
            "sequence ", slice.sequence, ": ", slice.tokens, " tokens at ", slice.first,
            "; it holds ", found.tokens, " and was admitted for ", found.max_tokens)),
        slice.sequence);
  }
  if (slice.first / options_.piece_tokens != (end - 1) / options_.piece_tokens) {
    return WithSequence(absl::InvalidArgumentError(absl::StrCat(
                            "sequence ", slice.sequence, ": ", slice.tokens, " tokens at ",
                            slice.first, " straddle a piece of ", options_.piece_tokens)),
                        slice.sequence);
  }
  const bool twice = std::any_of(parts_.begin(), parts_.end(),
                                 [&](const StepView::Part& p) { return p.sequence == &found; });
  if (twice) {
    return WithSequence(absl::InvalidArgumentError(
                            absl::StrCat("sequence ", slice.sequence, " is twice in one step")),
                        slice.sequence);
  }
  *sequence = &found;
  return absl::OkStatus();
}

absl::StatusOr<KvStep*> TieredCacheImpl::PrepareStep(absl::Span<const StepSlice> slices) {
  STRATA_CHECK(!in_step_);
  residency_->Drain(/*in_step=*/false);
  parts_.clear();
  for (const StepSlice& slice : slices) {
    SequenceState* sequence = nullptr;
    STRATA_RETURN_IF_ERROR(CheckSlice(slice, &sequence));
    parts_.push_back({sequence, slice.first, slice.tokens});
  }
  for (const StepView::Part& part : parts_) {
    const int32_t piece_block = part.first / options_.piece_tokens * plan_.piece_blocks;
    STRATA_RETURN_IF_ERROR(residency_->CommitDue(part.sequence, piece_block));
    STRATA_RETURN_IF_ERROR(
        residency_->Extend(part.sequence, BlocksForTokens(part.first + part.tokens)));
  }
  for (const StepView::Part& part : parts_) residency_->EncodeAhead(part.sequence);
  view_->Begin(parts_);
  if (residency_->staging() != nullptr) residency_->staging()->BeginStep(view_->cold_records());
  in_step_ = true;
  next_layer_ = 0;
  group_ = -1;
  step_wait_ = {};
  return static_cast<KvStep*>(this);
}

absl::StatusOr<LayerKv> TieredCacheImpl::BeginLayer(int32_t layer) {
  STRATA_CHECK(in_step_ && layer == next_layer_ && layer < plan_.hot.layers());
  residency_->Drain(/*in_step=*/true);
  if (!view_->cold_records().empty()) {
    const int32_t group = plan_.record.group_of_layer(layer);
    if (group != group_) STRATA_RETURN_IF_ERROR(EnterGroup(group));
    STRATA_RETURN_IF_ERROR(AwaitGroup());
  }
  ++next_layer_;
  return view_->Layer(layer);
}

absl::Status TieredCacheImpl::EnterGroup(int32_t group) {
  ColdStaging& staging = *residency_->staging();
  // The device may still be reading the units that are about to go.
  if (staging.DropsOnEntering(group)) STRATA_RETURN_IF_ERROR(memory_->Synchronize());
  staging.EnterGroup(group);
  group_ = group;
  return absl::OkStatus();
}

// Waits for the units of the group entered, and charges the time to the sequences that miss some.
absl::Status TieredCacheImpl::AwaitGroup() {
  ColdStaging& staging = *residency_->staging();
  if (staging.failed()) return DamagedError();
  if (staging.missing() == 0) return absl::OkStatus();
  const auto missed_by = [&](const SequenceState& sequence) {
    return std::any_of(sequence.table.blocks().begin(), sequence.table.blocks().end(),
                       [&](BlockId id) {
                         const BlockInfo& block = residency_->directory().Get(id);
                         return block.home == Tier::kCold && staging.IsMissing(block.home_slot());
                       });
  };
  std::vector<SequenceState*> waiting;
  for (const StepView::Part& part : view_->parts()) {
    if (missed_by(*part.sequence)) waiting.push_back(part.sequence);
  }
  const auto begun = std::chrono::steady_clock::now();
  auto progress = begun;
  while (staging.missing() > 0 && !staging.failed()) {
    const int32_t missing = staging.missing();
    residency_->WaitAndDrain(/*in_step=*/true, residency_->patience());
    const auto now = std::chrono::steady_clock::now();
    if (staging.missing() < missing) {
      progress = now;
    } else if (now - progress > residency_->patience()) {
      staging.GiveUp([&](SlotId record) { residency_->MarkLost(record); });
    }
  }
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begun;
  step_wait_ += waited;
  for (SequenceState* sequence : waiting) sequence->counters.cold_wait += waited;
  return staging.failed() ? DamagedError() : absl::OkStatus();
}

absl::Status TieredCacheImpl::DamagedError() const {
  for (const StepView::Part& part : view_->parts()) {
    if (!part.sequence->damaged) continue;
    return WithSequence(absl::DataLossError(absl::StrCat("sequence ", part.sequence->handle,
                                                         ": a cold record cannot be read intact")),
                        part.sequence->handle);
  }
  return absl::DataLossError("a cold record cannot be read intact");
}

void TieredCacheImpl::FinishStep(bool completed) {
  STRATA_CHECK(in_step_);
  in_step_ = false;
  if (residency_->staging() != nullptr) residency_->staging()->EndStep();
  if (step_wait_.count() > 0) fetch_wait_.Observe(step_wait_);
  if (completed) {
    CountAttended();
    CountLookups();
    for (const StepView::Part& part : view_->parts()) {
      residency_->Append(part.sequence, part.tokens);
      residency_->EncodeAhead(part.sequence);
    }
  }
  residency_->Drain(/*in_step=*/false);
}

void TieredCacheImpl::Poll() { residency_->Drain(in_step_); }

// --- looking ---

// Once a step and sequence: the tokens of its context by the precision they were read at.
void TieredCacheImpl::CountAttended() {
  for (const StepView::Part& part : view_->parts()) {
    const SequenceState& sequence = *part.sequence;
    const int32_t tokens = part.first + part.tokens;
    for (int32_t i = 0; i < BlocksForTokens(tokens); ++i) {
      const bool exact = residency_->directory().Get(sequence.table[i]).home == Tier::kHot;
      const Tier tier = exact ? Tier::kHot : sequence.policy.TierOf(i, sequence.piece_block);
      attended_[IndexOf(tier)] += std::min(kBlockTokens, tokens - i * kBlockTokens);
    }
  }
}

// Pages of hot and warm blocks are read where they lie; staging counts those of cold ones.
void TieredCacheImpl::CountLookups() {
  for (const StepView::Part& part : view_->parts()) {
    const int32_t blocks = BlocksForTokens(part.first + part.tokens);
    for (int32_t i = 0; i < blocks; ++i) {
      const Tier home = residency_->directory().Get(part.sequence->table[i]).home;
      if (home != Tier::kCold) lookups_[IndexOf(home)] += plan_.hot.layers();
    }
  }
}

SequenceUsage TieredCacheImpl::Usage(SequenceHandle handle) const {
  const SequenceState& sequence = Find(handle);
  SequenceUsage usage;
  for (const BlockId id : sequence.table.blocks()) {
    const BlockInfo& block = residency_->directory().Get(id);
    // Refused blocks are read in F16 for life, whatever the policy says.
    const Tier read =
        block.pinned_hot ? Tier::kHot : sequence.policy.TierOf(block.index, sequence.piece_block);
    usage.tokens[IndexOf(read)] += block.tokens;
  }
  for (int i = 0; i < kTierCount; ++i) {
    const size_t slot_bytes = plan_.SlotBytes(static_cast<Tier>(i));
    usage.pages[i] = int64_t{1} * sequence.accounts[i].used * plan_.hot.layers();
    usage.bytes[i] = sequence.accounts[i].used * slot_bytes;
    usage.peak_bytes[i] = sequence.counters.peak_slots[i] * slot_bytes;
    usage.bits_per_value[i] = BitsPerValue(plan_, static_cast<Tier>(i), options_.geometry).mean();
  }
  usage.links = sequence.counters.links;
  usage.cold_wait = sequence.counters.cold_wait;
  usage.k_relative_error = sequence.counters.k_relative_error;
  usage.v_relative_error = sequence.counters.v_relative_error;
  return usage;
}

CacheSnapshot TieredCacheImpl::Snapshot() const {
  CacheSnapshot snapshot;
  residency_->AddTo(&snapshot);
  for (int i = 0; i < kTierCount; ++i) {
    TierSnapshot& tier = snapshot.tiers[i];
    const Bits bits = BitsPerValue(plan_, static_cast<Tier>(i), options_.geometry);
    tier.bits_per_value = bits.mean();
    tier.k_bits_per_value = bits.k;
    tier.v_bits_per_value = bits.v;
    tier.f16_bytes = tier.pages * (plan_.hot.bytes() / plan_.hot.layers());
    tier.attended_tokens = attended_[i];
    if (static_cast<Tier>(i) == Tier::kCold) continue;
    tier.lookups = tier.hits = lookups_[i];
  }
  snapshot.fetch_wait = fetch_wait_;
  snapshot.sequences = std::count_if(sequences_.begin(), sequences_.end(),
                                     [](const SequenceState& s) { return s.live; });
  return snapshot;
}

void TieredCacheImpl::CheckInvariants() const {
  for (uint32_t i = 0; i < sequences_.size(); ++i) {
    const SequenceState& sequence = sequences_[i];
    if (!sequence.live) {
      STRATA_CHECK(sequence.table.size() == 0);
      continue;
    }
    sequence.table.CheckInvariants(residency_->directory(), i, sequence.tokens);
    STRATA_CHECK(sequence.write_next <= sequence.leave_next &&
                 sequence.leave_next <= sequence.encode_next);  // C1
  }
  residency_->CheckInvariants();
}

void TieredCacheImpl::WaitUntilIdle() {
  STRATA_CHECK(!in_step_);
  residency_->Drain(/*in_step=*/false);
  while (!residency_->Idle()) {
    residency_->WaitAndDrain(/*in_step=*/false, std::chrono::milliseconds(20));
  }
}

}  // namespace strata
