#include "tests/engine/fake_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tiering/status_payload.h"

namespace strata {

// What the model sees of the step being run.
class FakeCache::Step : public KvStep {
 public:
  explicit Step(FakeCache* cache) : cache_(cache) {}

  absl::StatusOr<LayerKv> BeginLayer(int32_t layer) override {
    STRATA_CHECK(layer == next_layer_++);
    if (layer == cache_->options_.geometry.layers - 1 && !bad.empty()) {
      return absl::DataLossError("a page failed its checksum");
    }
    targets_.clear();
    views_.clear();
    runs_.clear();
    attention_.clear();
    size_t blocks = 0;
    for (const StepSlice& slice : cache_->slices_) {
      blocks += cache_->sequences_.at(slice.sequence).blocks.size();
    }
    views_.reserve(blocks);  // runs point into it
    runs_.reserve(cache_->slices_.size());
    for (const StepSlice& slice : cache_->slices_) AddSequence(slice, layer);
    return LayerKv{targets_, attention_};
  }

  bool complete() const { return next_layer_ == cache_->options_.geometry.layers; }
  std::vector<SequenceHandle> bad;

 private:
  void AddSequence(const StepSlice& slice, int32_t layer) {
    const Entry& entry = cache_->sequences_.at(slice.sequence);
    const KvPageView* first_view = views_.data() + views_.size();
    for (const int32_t block : entry.blocks) {
      views_.push_back({.base = cache_->Page(block, layer), .refine = nullptr, .skip = 0});
    }
    PageRun run;
    run.stored = {KvKind::kF16, KvKind::kF16, cache_->options_.geometry.kv_heads,
                  cache_->options_.geometry.head_dim};
    run.page_count = static_cast<int32_t>(entry.blocks.size());
    run.tokens = slice.first + slice.tokens;
    run.pages = first_view;
    runs_.push_back(run);
    AttentionSequence attention;
    attention.first_row = static_cast<int32_t>(targets_.size());
    attention.rows = slice.tokens;
    attention.first_position = slice.first;
    attention.runs = absl::MakeConstSpan(&runs_.back(), 1);
    attention_.push_back(attention);
    for (int32_t t = slice.first; t < slice.first + slice.tokens; ++t) {
      const int32_t block = entry.blocks[static_cast<size_t>(t / kBlockTokens)];
      targets_.push_back({cache_->Page(block, layer), t % kBlockTokens});
    }
  }

  FakeCache* cache_;
  int32_t next_layer_ = 0;
  std::vector<AppendTarget> targets_;
  std::vector<KvPageView> views_;
  std::vector<PageRun> runs_;
  std::vector<AttentionSequence> attention_;
};

FakeCache::FakeCache(const FakeCacheOptions& options)
    : options_(options),
      pages_(static_cast<size_t>(options.capacity_blocks * options.geometry.layers) * PageBytes()) {
  tier_options_.geometry = options.geometry;
  tier_options_.formats.warm.assign(options.geometry.layers, {KvKind::kI4, KvKind::kI4});
  tier_options_.formats.cold.assign(options.geometry.layers, {KvKind::kI2, KvKind::kI2});
  tier_options_.hot_bytes = pages_.size();
  tier_options_.warm_bytes = tier_options_.cold_bytes = size_t{1} << 30;
  tier_options_.piece_tokens = options.piece_tokens;
  tier_options_.max_sequences = options.max_sequences;
  tier_options_.max_context = options.max_context;
  for (int32_t block = 0; block < options.capacity_blocks; ++block) {
    Scribble(block);
    free_.push_back(block);
  }
}

FakeCache::~FakeCache() { STRATA_CHECK(sequences_.empty()); }

size_t FakeCache::PageBytes() const {
  return size_t{4} * kBlockTokens * options_.geometry.kv_heads * options_.geometry.head_dim;
}

std::byte* FakeCache::Page(int32_t block, int32_t layer) {
  return pages_.data() + (size_t{1} * block * options_.geometry.layers + layer) * PageBytes();
}

void FakeCache::Scribble(int32_t block) {
  // 0x3c3c is 1.06 in binary16: a stale read gives wrong tokens, not a crash.
  std::memset(Page(block, 0), 0x3c, PageBytes() * options_.geometry.layers);
}

absl::StatusOr<SequenceHandle> FakeCache::Admit(int32_t max_tokens,
                                                const PositionalPolicy& policy) {
  const int32_t need = BlocksForTokens(max_tokens);
  if (need > options_.capacity_blocks) {
    return absl::OutOfRangeError(
        absl::StrCat("hot: needs ", need, " blocks of ", options_.capacity_blocks));
  }
  if (reserved_blocks_ + need > options_.capacity_blocks ||
      static_cast<int32_t>(sequences_.size()) >= options_.max_sequences) {
    return absl::ResourceExhaustedError(absl::StrCat("hot: needs ", need, " blocks, free ",
                                                     options_.capacity_blocks - reserved_blocks_));
  }
  reserved_blocks_ += need;
  sequences_[next_handle_] = {need, 0, {}};
  return next_handle_++;
}

void FakeCache::FreeBlocks(Entry* entry) {
  for (const int32_t block : entry->blocks) {
    Scribble(block);
    free_.push_back(block);
  }
  entry->blocks.clear();
}

void FakeCache::Release(SequenceHandle sequence) {
  STRATA_CHECK(step_ == nullptr);
  Entry& entry = sequences_.at(sequence);
  returning_.push_back({options_.release_polls, entry.reserved_blocks, std::move(entry.blocks)});
  sequences_.erase(sequence);
  if (options_.release_polls == 0) Poll();
}

void FakeCache::Poll() {
  std::erase_if(returning_, [&](Returning& item) {
    if (item.polls-- > 0) return false;
    Entry entry = {item.reserved, 0, std::move(item.blocks)};
    FreeBlocks(&entry);
    reserved_blocks_ -= item.reserved;
    return true;
  });
}

void FakeCache::Reset(SequenceHandle sequence) {
  STRATA_CHECK(step_ == nullptr);
  Entry& entry = sequences_.at(sequence);
  FreeBlocks(&entry);
  entry.tokens = 0;
}

absl::StatusOr<KvStep*> FakeCache::PrepareStep(absl::Span<const StepSlice> slices) {
  STRATA_CHECK(step_ == nullptr && damaged_.empty() && !slices.empty());
  for (const StepSlice& slice : slices) {
    const Entry& entry = sequences_.at(slice.sequence);
    STRATA_CHECK(slice.first == entry.tokens && slice.tokens > 0);
    const int32_t last = slice.first + slice.tokens - 1;
    STRATA_CHECK(slice.first / options_.piece_tokens == last / options_.piece_tokens);
    STRATA_CHECK(BlockOfToken(last) < entry.reserved_blocks);
    if (refuses) {
      if (const absl::Status status = refuses(slice); !status.ok()) {
        return WithSequence(status, slice.sequence);
      }
    }
  }
  step_ = std::make_unique<Step>(this);
  slices_.assign(slices.begin(), slices.end());
  for (const StepSlice& slice : slices) {
    Entry& entry = sequences_.at(slice.sequence);
    while (static_cast<int32_t>(entry.blocks.size()) <
           BlocksForTokens(slice.first + slice.tokens)) {
      STRATA_CHECK(!free_.empty());  // reservations guarantee it
      entry.blocks.push_back(free_.back());
      free_.pop_back();
    }
    if (damages && damages(slice)) step_->bad.push_back(slice.sequence);
  }
  ++steps_prepared_;
  return step_.get();
}

void FakeCache::FinishStep(bool completed) {
  STRATA_CHECK(step_ != nullptr);
  if (completed) {
    STRATA_CHECK(step_->complete());
    for (const StepSlice& slice : slices_) sequences_.at(slice.sequence).tokens += slice.tokens;
  }
  damaged_ = step_->bad;
  for (const SequenceHandle sequence : damaged_) {
    for (const int32_t block : sequences_.at(sequence).blocks) Scribble(block);
  }
  step_.reset();
}

std::vector<SequenceHandle> FakeCache::TakeDamaged() {
  STRATA_CHECK(step_ == nullptr);
  return std::exchange(damaged_, {});
}

SequenceUsage FakeCache::Usage(SequenceHandle sequence) const {
  SequenceUsage usage;
  usage.tokens[0] = sequences_.at(sequence).tokens;
  return usage;
}

CacheSnapshot FakeCache::Snapshot() const {
  const size_t block = PageBytes() * options_.geometry.layers;
  CacheSnapshot snapshot;
  TierSnapshot& hot = snapshot.tiers[0];
  hot.capacity_bytes = options_.capacity_blocks * block;
  hot.used_bytes = (static_cast<size_t>(options_.capacity_blocks) - free_.size()) * block;
  hot.reserved_bytes = static_cast<size_t>(reserved_blocks_) * block;
  snapshot.tiers[1].capacity_bytes = snapshot.tiers[2].capacity_bytes = uint64_t{1} << 30;
  snapshot.sequences = sequences_.size();
  return snapshot;
}

void FakeCache::CheckInvariants() const {
  size_t held = free_.size();
  int32_t reserved = 0;
  for (const auto& [handle, entry] : sequences_) {
    STRATA_CHECK(static_cast<int32_t>(entry.blocks.size()) <= entry.reserved_blocks);
    held += entry.blocks.size();
    reserved += entry.reserved_blocks;
  }
  for (const Returning& item : returning_) {
    held += item.blocks.size();
    reserved += item.reserved;
  }
  STRATA_CHECK(held == static_cast<size_t>(options_.capacity_blocks));
  STRATA_CHECK(reserved == reserved_blocks_);
}

}  // namespace strata
