#pragma once

// Sampling, a thread block a row: passes over the row's logits, which stay in L2.
//
// Decisions are those of Sampler (model/sampler.cc), to the bit: comparisons of floats that both
// sides round alike, and draws by weights in whole numbers (draw_weight.h), whose sums know no
// order. Filters: sample_filter.cuh.

#include "kernels/cuda/gpu_math.cuh"
#include "kernels/cuda/sample_filter.cuh"
#include "kernels/cuda/sample_launch.h"

namespace strata::cuda {

// A banned token's logit in the adjusted row: it counts as -infinity, but is told from one.
GPU_DEVICE float Banned() { return __uint_as_float(0x7fc00000u); }

// NaN is -infinity; + 0 makes zeros compare alike as bits.
GPU_DEVICE float Sane(float logit) {
  if (logit != logit) return -INFINITY;
  return __fadd_rn(fminf(logit, 3.40282347e38f), 0.0f);
}

// Greater means a greater logit, then a lower id.
GPU_DEVICE uint64_t Rank(float logit, int32_t id) {
  const uint32_t bits = __float_as_uint(logit);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
GPU_DEVICE int32_t IdOfRank(uint64_t rank) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
}

GPU_DEVICE uint64_t WarpMax64(uint64_t value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    const uint64_t other = __shfl_xor_sync(gpu::kAllLanes, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// The block's greatest; `slots` is free again after the next barrier.
GPU_DEVICE uint64_t BlockMax(uint64_t value, uint64_t* slots) {
  value = WarpMax64(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  for (int32_t w = 0; w < kSampleWarps; ++w) value = slots[w] > value ? slots[w] : value;
  return value;
}

GPU_DEVICE void ApplyEdit(const TokenEdit& edit, float penalty, float* adjusted) {
  float logit = __fadd_rn(adjusted[edit.id], edit.bias);
  if (edit.seen) {
    logit = Sane(logit > 0 ? __fdiv_rn(logit, penalty) : __fmul_rn(logit, penalty));
  }
  adjusted[edit.id] = edit.banned ? Banned() : __fsub_rn(logit, edit.subtract);
}

// The row as the choice sees it: raw, or a copy in `scratch` with the edits made.
GPU_DEVICE const float* AdjustRow(const float* raw, int32_t vocab, const SampleRow& row,
                                  const TokenEdit* edits, float* scratch) {
  if (row.edit_count == 0) return raw;
  for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) scratch[i] = Sane(raw[i]);
  __syncthreads();
  for (int32_t i = threadIdx.x; i < row.edit_count; i += kSampleThreads) {
    ApplyEdit(edits[row.first_edit + i], row.repetition_penalty, scratch);
  }
  __syncthreads();
  return scratch;
}

GPU_DEVICE uint64_t BestOf(const float* logits, int32_t vocab, uint64_t* slots) {
  uint64_t best = 0;
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) {
    const uint64_t rank = Rank(Sane(logits[i]), i);
    best = rank > best ? rank : best;
  }
  return BlockMax(best, slots);
}

// Where no token is left: the lowest that is not banned, or 0. logits: the adjusted row.
GPU_DEVICE int32_t LowestAllowed(const float* logits, int32_t vocab, bool edited, uint64_t* slots) {
  uint64_t best = 0;
  for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) {
    if (!edited || logits[i] == logits[i]) {
      best = Rank(0.0f, i);
      break;  // later ones are greater
    }
  }
  best = BlockMax(best, slots);
  return best == 0 ? 0 : IdOfRank(best);
}

// Philox4x32 of model/sampler_random.cc, its first 64 bits.
GPU_DEVICE uint64_t DrawBits(uint64_t seed, uint64_t position, uint32_t choice) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32);
  uint32_t c2 = choice, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<uint64_t>(c0) << 32 | c1;
}

// A row of logits after temperature: at most 0.
struct TemperedLogits {
  const float* logits;
  float greatest;
  float temperature;

  GPU_DEVICE float operator()(int32_t id) const {
    // The greatest logit becomes 0 before the division, so that no temperature overflows it.
    return __fdiv_rn(__fsub_rn(Sane(logits[id]), greatest), temperature);
  }
};

GPU_DEVICE int32_t Draw(const TemperedLogits& tempered, int32_t vocab, const SampleRow& row,
                        const SampleScratch& scratch, SampleShared* shared) {
  const auto target = [&row](uint64_t total) {
    return DrawTarget(DrawBits(row.seed, row.position, row.choice), total);
  };
  if (row.top_k == 0 && row.top_p == 0 && row.least_weight == 0) {
    return PickById([&](int32_t id) { return DrawWeight(tempered(id)); }, vocab, target, shared);
  }
  const WeighedRow weighed = {scratch.logits, scratch.weights, vocab};
  __syncthreads();  // the adjusted row, which is there too, gives up its greatest logit
  for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) {
    const float logit = tempered(i);
    weighed.logits[i] = logit;
    weighed.weights[i] = DrawWeight(logit);
  }
  __syncthreads();
  const Cut cut = CutRow(weighed, row, shared);
  const auto kept = [&](int32_t id) {
    const uint64_t weight = weighed.weights[id];
    return weight >= row.least_weight && cut.Keeps(weighed.Depth(id), id) ? weight : 0;
  };
  return PickById(kept, vocab, target, shared);
}

// log softmax of one token over the logits that are numbers. The order of the sum is fixed.
GPU_DEVICE float LogProbability(const float* raw, int32_t vocab, int32_t id, SampleShared* shared) {
  const uint64_t best = BestOf(raw, vocab, shared->slots);
  const float greatest = Sane(raw[IdOfRank(best)]);
  if (greatest == -INFINITY) return -INFINITY;
  double sum = 0;
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) {
    sum = gpu::AddDouble(sum, expf(__fsub_rn(Sane(raw[i]), greatest)));
  }
  for (int offset = 16; offset > 0; offset >>= 1) {
    sum = gpu::AddDouble(sum, __shfl_xor_sync(gpu::kAllLanes, sum, offset));
  }
  if (threadIdx.x % 32 == 0) shared->sums[threadIdx.x / 32] = sum;
  __syncthreads();
  double total = 0;
  for (int32_t w = 0; w < kSampleWarps; ++w) total = gpu::AddDouble(total, shared->sums[w]);
  return static_cast<float>(double{Sane(raw[id])} - double{greatest} - log(total));
}

// Grid: rows. Dynamic shared memory: kSampleColumnBytes.
__global__ void __launch_bounds__(kSampleThreads, 1) SampleKernel(SampleArgs args) {
  GPU_SHARED(SampleShared, shared);
  const SampleRow row = args.rows[blockIdx.x];
  const int32_t vocab = args.vocab;
  const float* raw = args.logits + size_t{1} * static_cast<uint32_t>(row.logits_row) * vocab;
  const size_t scratch_at = size_t{1} * blockIdx.x * vocab;
  const SampleScratch scratch = {args.scratch.logits + scratch_at,
                                 args.scratch.weights + scratch_at};
  const float* adjusted = AdjustRow(raw, vocab, row, args.edits, scratch.logits);
  int32_t id = IdOfRank(BestOf(adjusted, vocab, shared.slots));
  const float greatest = Sane(adjusted[id]);
  if (greatest == -INFINITY) {
    id = LowestAllowed(adjusted, vocab, row.edit_count > 0, shared.slots);
  } else if (row.temperature >= 1e-6f) {
    id = Draw({adjusted, greatest, row.temperature}, vocab, row, scratch, &shared);
  }
  const float logprob = row.with_logprob ? LogProbability(raw, vocab, id, &shared) : 0.0f;
  if (threadIdx.x == 0) args.out[blockIdx.x] = {id, logprob};
}

}  // namespace strata::cuda
