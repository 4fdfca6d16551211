#include "kernels/cpu/attention_cpu.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/attention_plan.h"

namespace strata {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

const AttentionKernels& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kAttentionScalar;
    case Isa::kAvx2:
      return kAttentionAvx2;
    case Isa::kAvx512:
      return kAttentionAvx512;
  }
  return kAttentionScalar;
}

// Floats on cache lines; grows, never shrinks.
class FloatScratch {
 public:
  float* Get(size_t count) {
    const size_t lines = (count + 15) / 16;
    if (lines_.size() < lines) lines_.resize(lines);
    return lines_.empty() ? nullptr : lines_.front().values;
  }

 private:
  struct alignas(64) Line {
    float values[16];
  };
  std::vector<Line> lines_;
};

// What one thread works in.
struct ThreadScratch {
  FloatScratch q, scores, split, total;
};

// Attention on the CPU: plans a call as items (attention_plan.h), runs them on the pool, merges.
// Owned by a backend; engine thread. The order of arithmetic of a query follows from the pages it
// sees alone: splits are cut at fixed block indices and always merged in order, whether one item
// does them all or several items leave their states in slots for the last one to finish.
class CpuAttention final : public AttentionBackend {
 public:
  CpuAttention(Isa isa, ThreadPool* pool)
      : kernels_(KernelsOf(isa)), pool_(pool), plan_(kernels_.costs), scratch_(pool->threads()) {}

  void Attend(const AttentionShape& shape, const float* q,
              absl::Span<const AttentionSequence> sequences, PartialStates* states) override;

 private:
  // The call in progress, shared by its items.
  struct Call {
    const AttentionShape& shape;
    const float* q;
    PartialStates* states;
    int32_t group;
    int32_t v_group;
  };

  void RunItem(const Call& call, const AttentionItem& item, ThreadScratch* scratch);
  static void ScaleQueries(const Call& call, const AttentionUnit& unit, float* scaled);
  void FinishUnit(const Call& call, const AttentionItem& item, int32_t unit_index,
                  const StateView& total);
  StateView Slot(const Call& call, const AttentionUnit& unit, int32_t split);
  static StateView ViewOf(float* floats, int32_t queries, int32_t head_dim);
  static void Publish(const Call& call, const AttentionUnit& unit, const StateView& total);

  const AttentionKernels& kernels_;
  ThreadPool* pool_;
  AttentionPlan plan_;
  FloatScratch slots_;
  float* slot_floats_ = nullptr;
  std::vector<ThreadScratch> scratch_;
};

StateView CpuAttention::ViewOf(float* floats, int32_t queries, int32_t head_dim) {
  float* m = floats + size_t{1} * queries * head_dim;
  return {floats, m, m + queries};
}

StateView CpuAttention::Slot(const Call& call, const AttentionUnit& unit, int32_t split) {
  const int32_t queries = unit.rows * call.group;
  const size_t floats = AttentionPlan::StateFloats(queries, call.shape.head_dim);
  return ViewOf(slot_floats_ + unit.first_slot + floats * split, queries, call.shape.head_dim);
}

// Folds the finished states into the caller's, in natural units.
void CpuAttention::Publish(const Call& call, const AttentionUnit& unit, const StateView& total) {
  const int32_t dim = call.shape.head_dim;
  for (int32_t i = 0; i < unit.rows * call.group; ++i) {
    if (total.l[i] == 0.0f) continue;
    const int32_t row = unit.sequence->first_row + unit.first_row + i / call.group;
    const size_t state =
        size_t{1} * row * call.shape.query_heads + unit.kv_head * call.group + i % call.group;
    float* o = &call.states->o[state * dim];
    const float* add = total.o + size_t{1} * i * dim;
    float& m = call.states->m[state];
    float& l = call.states->l[state];
    const float total_m = total.m[i] * kLn2;
    if (l == 0.0f) {
      m = total_m;
      l = total.l[i];
      std::copy_n(add, dim, o);
      continue;
    }
    const float top = std::max(m, total_m);
    const float keep = std::exp(m - top);
    const float gain = std::exp(total_m - top);
    for (int32_t c = 0; c < dim; ++c) o[c] = o[c] * keep + add[c] * gain;
    l = l * keep + total.l[i] * gain;
    m = top;
  }
}

void CpuAttention::ScaleQueries(const Call& call, const AttentionUnit& unit, float* scaled) {
  const int32_t dim = call.shape.head_dim;
  const int32_t values = call.group * dim;
  for (int32_t r = 0; r < unit.rows; ++r) {
    const size_t row = size_t{1} * (unit.sequence->first_row + unit.first_row + r);
    const float* q = call.q + (row * call.shape.query_heads + unit.kv_head * call.group) * dim;
    for (int32_t c = 0; c < values; ++c) scaled[r * values + c] = q[c] * kLog2E;
  }
}

void CpuAttention::RunItem(const Call& call, const AttentionItem& item, ThreadScratch* scratch) {
  const AttentionUnit* units = &plan_.units()[item.first_unit];
  const int32_t dim = call.shape.head_dim;
  const int32_t queries = units->rows * call.group;
  const size_t q_floats = size_t{1} * queries * dim;
  const size_t state_floats = AttentionPlan::StateFloats(queries, dim);
  float* q = scratch->q.Get(q_floats * item.unit_count);
  float* totals = scratch->total.Get(state_floats * item.unit_count);
  for (int32_t u = 0; u < item.unit_count; ++u) {
    ScaleQueries(call, units[u], q + q_floats * u);
    std::fill_n(ViewOf(totals + state_floats * u, queries, dim).l, queries, 0.0f);
  }
  SplitArgs args{};
  args.head_dim = dim;
  args.v_group = call.v_group;
  args.queries = queries;
  args.group = call.group;
  args.first_position = units->sequence->first_position + units->first_row;
  args.scores = scratch->scores.Get(size_t{1} * queries * kScoreStride);

  // Split by split, all heads of one before the next. The pages that follow are known while some
  // are read, so that they can be fetched ahead.
  const int32_t steps = (item.end_split - item.first_split) * item.unit_count;
  HeadPage pages[2][kSplitPagesMax];
  int32_t counts[2];
  const auto find_pages = [&](int32_t step) {
    counts[step & 1] =
        step == steps ? 0
                      : plan_.HeadPages(units[step % item.unit_count],
                                        item.first_split + step / item.unit_count, pages[step & 1]);
  };
  find_pages(0);
  for (int32_t step = 0; step < steps; ++step) {
    find_pages(step + 1);
    const int32_t u = step % item.unit_count;
    const int32_t split = item.first_split + step / item.unit_count;
    args.q = q + q_floats * u;
    args.pages = pages[step & 1];
    args.page_count = counts[step & 1];
    args.first = step == 0;
    args.next = pages[(step + 1) & 1];
    args.next_count = counts[(step + 1) & 1];
    args.out = units[u].slotted ? Slot(call, units[u], split)
                                : ViewOf(scratch->split.Get(state_floats), queries, dim);
    kernels_.attend_split(args);
    if (units[u].slotted) continue;
    kernels_.merge(queries, dim, args.out, ViewOf(totals + state_floats * u, queries, dim));
  }
  for (int32_t u = 0; u < item.unit_count; ++u) {
    FinishUnit(call, item, item.first_unit + u, ViewOf(totals + state_floats * u, queries, dim));
  }
}

// Merges a slotted unit's splits into `total` where this item is the last one, and publishes.
void CpuAttention::FinishUnit(const Call& call, const AttentionItem& item, int32_t unit_index,
                              const StateView& total) {
  const AttentionUnit& unit = plan_.units()[unit_index];
  if (unit.slotted) {
    if (!plan_.FinishSplits(item, unit_index)) return;
    for (int32_t s = 0; s < unit.split_count; ++s) {
      kernels_.merge(unit.rows * call.group, call.shape.head_dim, Slot(call, unit, s), total);
    }
  }
  Publish(call, unit, total);
}

void CpuAttention::Attend(const AttentionShape& shape, const float* q,
                          absl::Span<const AttentionSequence> sequences, PartialStates* states) {
  STRATA_CHECK(shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0);
  STRATA_CHECK(shape.head_dim > 0 && shape.head_dim % 16 == 0 && shape.head_dim <= kHeadDimMax);
  STRATA_CHECK(states->heads == shape.query_heads && states->head_dim == shape.head_dim);
  plan_.Build(shape, sequences, pool_->threads());
  slot_floats_ = slots_.Get(plan_.slot_floats());
  const PageFormat format{KvKind::kI4, KvKind::kI4, shape.kv_heads, shape.head_dim};
  const Call call{shape, q, states, shape.query_heads / shape.kv_heads, format.VGroup()};
  const auto run = [&](int64_t i, int thread) {
    RunItem(call, plan_.items()[i], &scratch_[thread]);
  };
  pool_->ParallelFor(static_cast<int64_t>(plan_.items().size()), run);
}

}  // namespace

std::unique_ptr<AttentionBackend> MakeCpuAttention(Isa isa, ThreadPool* pool) {
  return std::make_unique<CpuAttention>(isa, pool);
}

}  // namespace strata
