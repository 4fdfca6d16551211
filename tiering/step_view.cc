#include "tiering/step_view.h"

#include <algorithm>

#include "base/check.h"

namespace strata {

void StepView::Begin(absl::Span<const Part> parts) {
  parts_.assign(parts.begin(), parts.end());
  blocks_.clear();
  cold_records_.clear();
  for (const Part& part : parts_) Find(part);
  pages_.resize(blocks_.size());
}

void StepView::Find(const Part& part) {
  const int32_t blocks = BlocksForTokens(part.first + part.tokens);
  for (int32_t i = 0; i < blocks; ++i) {
    blocks_.push_back(Locate(*part.sequence, i));
    if (blocks_.back().source == Source::kCold) cold_records_.push_back(blocks_.back().record);
  }
}

StepView::Block StepView::Locate(const SequenceState& sequence, int32_t index) const {
  const BlockInfo& block = residency_.directory().Get(sequence.table[index]);
  switch (block.home) {
    case Tier::kHot:
      return {residency_.BytesOf(block), SlotId(), Source::kHot};
    case Tier::kWarm: {
      const bool cold = sequence.policy.TierOf(index, sequence.piece_block) == Tier::kCold;
      return {residency_.BytesOf(block), SlotId(), cold ? Source::kWarmAsCold : Source::kWarm};
    }
    case Tier::kCold:
      break;
  }
  return {nullptr, block.home_slot(), Source::kCold};
}

// A run of one page, and where it lies.
PageRun StepView::Page(const Block& block, int32_t layer, KvPageView* page) const {
  PageRun run;
  const TensorKinds& cold = formats_.cold[layer];
  switch (block.source) {
    case Source::kHot:
      *page = {plan_.hot.base(block.slot, layer), nullptr, 0};
      run.stored = plan_.hot.format(layer);
      run.read_k = run.read_v = KvKind::kF16;
      return run;
    case Source::kWarm:
    case Source::kWarmAsCold: {
      *page = {plan_.warm.base(block.slot, layer), plan_.warm.refine(block.slot, layer), 0};
      const TensorKinds& read = block.source == Source::kWarm ? formats_.warm[layer] : cold;
      run.stored = plan_.warm.format(layer);
      run.on_host = true;
      run.read_k = read.k;
      run.read_v = read.v;
      return run;
    }
    case Source::kCold:
      break;
  }
  const int32_t group = plan_.record.group_of_layer(layer);
  const std::byte* unit = residency_.staging()->Unit(block.record, group);
  run.stored = plan_.record.format(layer);
  run.on_host = true;
  run.read_k = cold.k;
  run.read_v = cold.v;
  *page = {unit + plan_.record.base_in_group(layer),
           run.stored.RefineBytes() > 0 ? unit + plan_.record.refine_in_group(layer) : nullptr, 0};
  return run;
}

void StepView::AddRuns(const Part& part, size_t* next_block, int32_t layer) {
  const int32_t tokens = part.first + part.tokens;
  const int32_t blocks = BlocksForTokens(tokens);
  const size_t first_run = runs_.size();
  for (int32_t i = 0; i < blocks; ++i, ++*next_block) {
    KvPageView* page = &pages_[*next_block];
    PageRun run = Page(blocks_[*next_block], layer, page);
    const bool joins = runs_.size() > first_run && runs_.back().stored == run.stored &&
                       runs_.back().read_k == run.read_k && runs_.back().read_v == run.read_v &&
                       runs_.back().on_host == run.on_host;
    if (!joins) {
      run.first_block = i;
      run.pages = page;
      runs_.push_back(run);
    }
    ++runs_.back().page_count;
    runs_.back().tokens += std::min(kBlockTokens, tokens - i * kBlockTokens);
  }
}

void StepView::AddTargets(const Part& part, int32_t layer) {
  for (int32_t i = 0; i < part.tokens; ++i) {
    const int32_t position = part.first + i;
    const BlockId id = part.sequence->table[BlockOfToken(position)];
    targets_.push_back(
        {residency_.HotBytes(residency_.directory().Get(id)) + plan_.hot.base_offset(layer),
         position % kBlockTokens});
  }
}

LayerKv StepView::Layer(int32_t layer) {
  runs_.clear();
  run_ends_.clear();
  targets_.clear();
  sequences_.clear();
  size_t next_block = 0;
  for (const Part& part : parts_) {
    AddRuns(part, &next_block, layer);
    AddTargets(part, layer);
    run_ends_.push_back(runs_.size());
  }
  STRATA_CHECK(next_block == blocks_.size());
  // Spans only now: the vectors have stopped growing.
  size_t first_run = 0;
  int32_t row = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    sequences_.push_back({row, parts_[i].tokens, parts_[i].first,
                          absl::MakeConstSpan(runs_).subspan(first_run, run_ends_[i] - first_run)});
    first_run = run_ends_[i];
    row += parts_[i].tokens;
  }
  return {targets_, sequences_};
}

}  // namespace strata
