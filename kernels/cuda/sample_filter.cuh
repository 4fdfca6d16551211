#pragma once

// What top_k, top_p and the draw ask of a row: the first token, in some order, with which the
// weights sum up to more than a target. Whole numbers, so that the order of addition is free.

#include "kernels/cuda/gpu_compat.cuh"
#include "kernels/draw_filter.h"
#include "kernels/sample_types.h"

namespace strata::cuda {

inline constexpr int32_t kSampleThreads = 512;
inline constexpr int32_t kSampleWarps = kSampleThreads / 32;
inline constexpr int32_t kSampleTile = 1024;  // tokens whose weights are summed apart
inline constexpr int32_t kSampleTilesMax = kSampleVocabMax / kSampleTile;

// Depths are found four bits at a time. Every thread sums the tokens it sees by digit in a column
// of its own: shared memory has no 64-bit atomic addition, and most tokens would ask for one word.
inline constexpr int32_t kDigitBits = 4;
inline constexpr int32_t kDigits = 1 << kDigitBits;
static_assert(kDigits == kSampleWarps, "a warp sums a digit's columns");
inline constexpr size_t kSampleColumnBytes = sizeof(uint64_t) * kDigits * kSampleThreads;

struct SampleShared {
  uint64_t slots[kSampleWarps];
  uint64_t tiles[kSampleTilesMax];
  uint64_t digits[kDigits];
  double sums[kSampleWarps];
  int32_t id;
};

GPU_DEVICE uint64_t WarpSum64(uint64_t value) {
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(gpu::kAllLanes, value, offset);
  }
  return value;
}

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

// By ascending id, the token with which the weights exceed target_of(their sum).
template <class Weight, class TargetOf>
GPU_DEVICE int32_t PickById(const Weight& weight, int32_t vocab, const TargetOf& target_of,
                            SampleShared* shared) {
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t tiles = (vocab + kSampleTile - 1) / kSampleTile;
  const auto weight_at = [&](int32_t id) { return id < vocab ? weight(id) : uint64_t{0}; };
  for (int32_t tile = warp; tile < tiles; tile += kSampleWarps) {
    uint64_t sum = 0;
#pragma unroll 4
    for (int32_t i = 0; i < kSampleTile; i += 32) sum += weight_at(tile * kSampleTile + i + lane);
    sum = WarpSum64(sum);
    if (lane == 0) shared->tiles[tile] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    uint64_t total = 0;
    for (int32_t tile = lane; tile < tiles; tile += 32) total += shared->tiles[tile];
    total = WarpSum64(total);
    const Crossing tile =
        FindCrossing([&](int32_t i) { return shared->tiles[i]; }, tiles, target_of(total));
    const int32_t base = tile.index * kSampleTile;
    const Crossing token =
        FindCrossing([&](int32_t i) { return weight_at(base + i); }, kSampleTile, tile.left);
    if (lane == 0) shared->id = base + token.index;
  }
  __syncthreads();
  return shared->id;
}

// A row after temperature, with its weights.
struct WeighedRow {
  float* logits;      // at most 0
  uint64_t* weights;  // DrawWeight
  int32_t vocab;

  // How far below the greatest a token is, as bits that are ordered as floats are. All tokens too
  // deep to weigh anything (DrawWeight) are at one depth: among them order makes no difference.
  GPU_DEVICE uint32_t Depth(int32_t id) const {
    const uint32_t depth = __float_as_uint(logits[id]) & 0x7fffffffu;
    return depth < 0x41e80000u ? depth : 0x41e80000u;
  }
};

// What top_k sums, and what top_p does: by token, and that of every token at a depth.
struct CountOfTokens {
  GPU_DEVICE uint64_t operator()(int32_t) const { return 1; }
  GPU_DEVICE uint64_t AtDepth(uint32_t) const { return 1; }
};
struct WeightOfTokens {
  const uint64_t* weights;

  GPU_DEVICE uint64_t operator()(int32_t id) const { return weights[id]; }
  GPU_DEVICE uint64_t AtDepth(uint32_t depth) const {
    return DrawWeight(__uint_as_float(depth | 0x80000000u));
  }
};

// The last token that is kept, in the order of top_k and top_p: least depth first, of equals the
// lowest id.
struct Cut {
  uint32_t depth = 0xffffffffu;
  int32_t id = 0x7fffffff;

  GPU_DEVICE bool Keeps(uint32_t token_depth, int32_t token_id) const {
    return token_depth < depth || (token_depth == depth && token_id <= id);
  }
};

// shared->digits[d] = the weights of kept tokens whose depth has `known` bits like `found` and d in
// the four bits from `shift` on.
template <class Weight>
GPU_DEVICE void SumByDigit(const WeighedRow& row, const Cut& cut, const Weight& weight,
                           uint32_t found, uint32_t known, int shift, SampleShared* shared) {
  GPU_DYN_SHARED(uint64_t, columns);
  for (int32_t d = 0; d < kDigits; ++d) columns[d * kSampleThreads + threadIdx.x] = 0;
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < row.vocab; i += kSampleThreads) {
    const uint32_t depth = row.Depth(i);
    if (((depth ^ found) & known) != 0 || !cut.Keeps(depth, i)) continue;
    columns[(depth >> shift & (kDigits - 1)) * kSampleThreads + threadIdx.x] += weight(i);
  }
  __syncthreads();
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t sum = 0;
  for (int32_t i = lane; i < kSampleThreads; i += 32) sum += columns[warp * kSampleThreads + i];
  sum = WarpSum64(sum);
  if (lane == 0) shared->digits[warp] = sum;
  __syncthreads();
}

// Of the tokens that `cut` keeps, keeps those up to the one with which the weights exceed
// target_of(their sum).
template <class Weight, class TargetOf>
GPU_DEVICE Cut CutAt(const WeighedRow& row, const Cut& cut, const Weight& weight,
                     const TargetOf& target_of, SampleShared* shared) {
  uint32_t found = 0, known = 0;
  uint64_t target = 0, sum = 0;  // sum: of the tokens at the depth found so far
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    SumByDigit(row, cut, weight, found, known, shift, shared);
    if (known == 0) {
      uint64_t total = 0;
      for (int32_t d = 0; d < kDigits; ++d) total += shared->digits[d];
      target = target_of(total);
    }
    uint32_t digit = 0;
    while (digit < kDigits - 1 && target >= shared->digits[digit]) {
      target -= shared->digits[digit++];
    }
    sum = shared->digits[digit];
    found |= digit << shift;
    known |= static_cast<uint32_t>(kDigits - 1) << shift;
  }
  const auto weight_there = [&](int32_t id) {
    return row.Depth(id) == found && cut.Keeps(found, id) ? weight(id) : 0;
  };
  const auto target_there = [&](uint64_t) { return target; };
  Cut result = {found, found == cut.depth ? cut.id : 0x7fffffff};
  // Mostly it is the last so deep, and the only one.
  if (sum - target > weight.AtDepth(found)) {
    result.id = PickById(weight_there, row.vocab, target_there, shared);
  }
  return result;
}

// top_k, then top_p of what it leaves.
GPU_DEVICE Cut CutRow(const WeighedRow& weighed, const SampleRow& row, SampleShared* shared) {
  Cut cut;
  if (row.top_k > 0) {
    cut = CutAt(
        weighed, cut, CountOfTokens(), [&](uint64_t) { return uint64_t{row.top_k} - 1; }, shared);
  }
  if (row.top_p > 0) {
    cut = CutAt(
        weighed, cut, WeightOfTokens{weighed.weights},
        [&](uint64_t total) { return MassTarget(row.top_p, total); }, shared);
  }
  return cut;
}

}  // namespace strata::cuda
