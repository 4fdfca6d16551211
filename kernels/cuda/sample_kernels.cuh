#pragma once

// Sampling, a thread block a row: at most four passes over the row's logits, which stay in L2.
//
// Decisions are those of Sampler (model/sampler.cc), to the bit: comparisons of floats that both
// sides round alike, and draws by weights in whole numbers (draw_weight.h), whose sums know no
// order.

#include "kernels/cuda/gpu_math.cuh"
#include "kernels/cuda/sample_types.h"
#include "kernels/draw_weight.h"

namespace strata::cuda {

inline constexpr int32_t kSampleThreads = 512;
inline constexpr int32_t kSampleWarps = kSampleThreads / 32;
inline constexpr int32_t kSampleTile = 1024;  // tokens whose weights are summed apart
inline constexpr int32_t kSampleTilesMax = kSampleVocabMax / kSampleTile;

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
GPU_DEVICE uint64_t WarpSum64(uint64_t value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(gpu::kAllLanes, value, offset);
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

// The row as the choice sees it: raw, or a copy with the edits made.
GPU_DEVICE const float* AdjustRow(const float* raw, int32_t vocab, const SampleRow& row,
                                  const TokenEdit* edits) {
  if (row.edit_count == 0) return raw;
  for (int32_t i = threadIdx.x; i < vocab; i += kSampleThreads) row.adjusted[i] = Sane(raw[i]);
  __syncthreads();
  for (int32_t i = threadIdx.x; i < row.edit_count; i += kSampleThreads) {
    ApplyEdit(edits[row.first_edit + i], row.repetition_penalty, row.adjusted);
  }
  __syncthreads();
  return row.adjusted;
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

// The weights of a row's tokens.
struct TokenWeights {
  const float* logits;
  int32_t vocab;
  float greatest;
  float temperature;

  GPU_DEVICE uint64_t operator()(int32_t id) const {
    if (id >= vocab) return 0;
    // The greatest logit becomes 0 before the division, so that no temperature overflows it.
    return DrawWeight(__fdiv_rn(__fsub_rn(Sane(logits[id]), greatest), temperature));
  }
};

struct Crossing {
  int32_t index;
  uint64_t left;  // of the target, at the start of `index`
};

// A warp finds the first of `count` weights with which their sum exceeds the target.
template <class Weight>
GPU_DEVICE Crossing FindCrossing(const Weight& weight, int32_t count, uint64_t target) {
  const int32_t lane = threadIdx.x % 32;
  for (int32_t first = 0; first < count; first += 32) {
    const uint64_t mine = first + lane < count ? weight(first + lane) : 0;
    uint64_t sum = mine;
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t other = __shfl_up_sync(gpu::kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    const unsigned beyond = __ballot_sync(gpu::kAllLanes, sum > target);
    if (beyond != 0) {
      const int winner = __ffs(static_cast<int>(beyond)) - 1;
      const uint64_t before = __shfl_sync(gpu::kAllLanes, sum - mine, winner);
      return {first + winner, target - before};
    }
    target -= __shfl_sync(gpu::kAllLanes, sum, 31);
  }
  return {0, 0};  // not reached: the target is below the sum of all
}

struct SampleShared {
  uint64_t slots[kSampleWarps];
  uint64_t tiles[kSampleTilesMax];
  double sums[kSampleWarps];
  int32_t id;
};

GPU_DEVICE int32_t Draw(const TokenWeights& weights, const SampleRow& row, SampleShared* shared) {
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t tiles = (weights.vocab + kSampleTile - 1) / kSampleTile;
  for (int32_t tile = warp; tile < tiles; tile += kSampleWarps) {
    uint64_t sum = 0;
#pragma unroll 4
    for (int32_t i = 0; i < kSampleTile; i += 32) sum += weights(tile * kSampleTile + i + lane);
    sum = WarpSum64(sum);
    if (lane == 0) shared->tiles[tile] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    uint64_t total = 0;
    for (int32_t tile = lane; tile < tiles; tile += 32) total += shared->tiles[tile];
    total = WarpSum64(total);
    const uint64_t target = gpu::MulHigh64(DrawBits(row.seed, row.position, row.choice), total);
    const Crossing tile = FindCrossing([&](int32_t i) { return shared->tiles[i]; }, tiles, target);
    const int32_t base = tile.index * kSampleTile;
    const Crossing token =
        FindCrossing([&](int32_t i) { return weights(base + i); }, kSampleTile, tile.left);
    if (lane == 0) shared->id = base + token.index;
  }
  __syncthreads();
  return shared->id;
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

// Grid: rows.
__global__ void __launch_bounds__(kSampleThreads)
    SampleKernel(const float* logits, int32_t vocab, const SampleRow* rows, const TokenEdit* edits,
                 SampledRow* out) {
  GPU_SHARED(SampleShared, shared);
  const SampleRow row = rows[blockIdx.x];
  const float* raw = logits + size_t{1} * static_cast<uint32_t>(row.logits_row) * vocab;
  const float* adjusted = AdjustRow(raw, vocab, row, edits);
  int32_t id = IdOfRank(BestOf(adjusted, vocab, shared.slots));
  const float greatest = Sane(adjusted[id]);
  if (greatest == -INFINITY) {
    id = LowestAllowed(adjusted, vocab, row.edit_count > 0, shared.slots);
  } else if (row.temperature >= 1e-6f) {
    id = Draw({adjusted, vocab, greatest, row.temperature}, row, &shared);
  }
  const float logprob = row.with_logprob ? LogProbability(raw, vocab, id, &shared) : 0.0f;
  if (threadIdx.x == 0) out[blockIdx.x] = {id, logprob};
}

}  // namespace strata::cuda
