#pragma once

#include "kernels/cuda/attention_codes.cuh"
#include "kernels/cuda/attention_f16.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_stream.cuh"

namespace strata::cuda {

inline constexpr float kLog2E = 1.44269504f;

// The queries of a block's tile, prepared once in shared memory.
template <int kQueryTiles>
class TileQueries {
 public:
  GPU_DEVICE TileQueries(const AttentionGeometry& geometry, uint8_t* shared)
      : geometry_(geometry),
        codes_(reinterpret_cast<float*>(shared)),
        halves_(reinterpret_cast<uint4*>(shared + geometry.q_halves)),
        scale_(reinterpret_cast<float*>(shared + geometry.q_scale)) {}

  // By the whole block; ends with a barrier.
  GPU_DEVICE void Load(const AttentionLaunch& launch, const AttentionWork& work, int kv_head) {
    Gather(launch, work, kv_head);
    __syncthreads();
    Scale();
    __syncthreads();
    Split();
    __syncthreads();
  }

  // For FoldQueries: FP32, times log2(e) as the CPU's.
  GPU_DEVICE const float4* codes() const { return reinterpret_cast<const float4*>(codes_); }
  // For HalfScores: times log2(e) and a power of two that keeps them well within a half.
  GPU_DEVICE const uint4* halves() const { return halves_; }
  // What takes a score of halves() back, by query.
  GPU_DEVICE const float* scale() const { return scale_; }

 private:
  static constexpr int kQueries = 8 * kQueryTiles;

  // Where channel c of a query lies in codes_.
  GPU_DEVICE int Index(int query, int c) const {
    const int line = c / 16;
    const int four = ((query / 8 * geometry_.line_groups + line / 4) * 4 + c / 4 % 4) * 32 +
                     query % 8 * 4 + line % 4;
    return four * 4 + c % 4;
  }

  // Queries that the tile does not have are zeros; channels of lines that do not exist are not
  // read.
  GPU_DEVICE void Gather(const AttentionLaunch& launch, const AttentionWork& work, int kv_head) {
    const int dim = geometry_.dim;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kQueries * dim / 4; i += blockDim.x) {
      const int query = i / (dim / 4);
      const int c = i % (dim / 4) * 4;
      float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (query < work.queries) {
        const int flat = work.first_query + query;
        const int64_t row = work.first_row + flat / geometry_.group;
        const int head = kv_head * geometry_.group + flat % geometry_.group;
        x = *reinterpret_cast<const float4*>(launch.q + (row * launch.query_heads + head) * dim +
                                             c);
      }
      *reinterpret_cast<float4*>(codes_ + Index(query, c)) =
          make_float4(__fmul_rn(x.x, kLog2E), __fmul_rn(x.y, kLog2E), __fmul_rn(x.z, kLog2E),
                      __fmul_rn(x.w, kLog2E));
    }
  }

  // scale_[query] = 2^e such that the largest |x| 2^-e is in [128, 256): products with any half and
  // their sums stay finite, and what the low halves lose is 2^-32 of the largest.
  GPU_DEVICE void Scale() {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int query = static_cast<int>(threadIdx.x / 32); query < kQueries;
         query += kAttentionWarps) {
      float top = 0.0f;
      for (int c = lane; c < geometry_.dim; c += 32) {
        top = fmaxf(top, fabsf(codes_[Index(query, c)]));
      }
      top = gpu::WarpMax(top);
      const int exponent = static_cast<int>(__float_as_uint(top) >> 23);
      // 2^-e has the exponent field 261 - exponent; zero and what is not finite are left alone.
      const int field = exponent == 0 || exponent == 255 ? 127 : min(261 - exponent, 253);
      if (lane == 0) scale_[query] = __uint_as_float(static_cast<uint32_t>(254 - field) << 23);
    }
  }

  GPU_DEVICE void Split() {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < geometry_.lines * kQueryTiles * 32;
         i += blockDim.x) {
      const int lane = i % 32;
      const int query = i / 32 % kQueryTiles * 8 + lane / 4;
      const int c = i / 32 / kQueryTiles * 16 + lane % 4 * 2;
      const float factor = 1.0f / scale_[query];  // exact: a power of two
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] = SplitHalves(__fmul_rn(codes_[Index(query, c + k / 2 * 8 + k % 2)], factor));
      }
      halves_[i] = make_uint4(
          __byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
          __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
    }
  }

  const AttentionGeometry& geometry_;
  float* codes_;
  uint4* halves_;
  float* scale_;
};

// One warp's share of the pages: scores, running softmax and weighted values. Elements of C
// (scores: rows are tokens; o: rows are channels) are as attention_f16.cuh says; columns are
// queries.
template <int kChannelTiles, int kQueryTiles>
class WarpAttention {
 public:
  static constexpr int kLineGroups = (kChannelTiles + 3) / 4;

  GPU_DEVICE WarpAttention(const AttentionGeometry& geometry, const AttentionWork& work,
                           const TileQueries<kQueryTiles>& queries, uint8_t* shared)
      : geometry_(geometry),
        queries_(queries),
        lane_(static_cast<int>(threadIdx.x % 32)),
        row_position_(work.first_position),
        first_query_(work.first_query) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    weights_ = reinterpret_cast<float4*>(shared + geometry.weights) + warp * kQueryTiles * 128;
    staged_ = shared + geometry.staged + warp * 8 * kQueryTiles * kStagedStride;
    first_position_ = work.first_position + work.first_query / geometry.group;
    last_position_ = work.first_position + (work.first_query + work.queries - 1) / geometry.group;
  }

  GPU_DEVICE int32_t last_position() const { return last_position_; }

  GPU_DEVICE void Reset() {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        m_[n][c] = kScoreFloor;
        l_[n][c] = 0.0f;
      }
#pragma unroll
      for (int mt = 0; mt < kChannelTiles; ++mt) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o_[mt][n][i] = 0.0f;
      }
    }
  }

  template <class Stream>
  GPU_DEVICE void AttendPage(Stream* stream) {
    const PageInfo info = stream->NextPage();
    // Whether some query may not see some token.
    masked_ = info.visible != ~uint64_t{0} || info.position + kBlockTokens - 1 > first_position_;
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) top_[n][0] = top_[n][1] = kScoreFloor;
    if (info.k == AttentionRead::kF16 && (info.parts & 15) != 15) HideTiles(~info.parts & 15);
    // Chunk by chunk, as the stream brings them: K, then V. One loop, so that the code that follows
    // the stream is there once.
    bool scored = false;
#pragma unroll 1
    for (uint32_t parts = info.parts; parts != 0; parts &= parts - 1) {
      const int part = __ffs(static_cast<int>(parts)) - 1;
      if (part >= 4 && !scored) {
        Softmax();
        scored = true;
      }
      const uint8_t* chunk = stream->NextChunk();
      if (part < 4) {
        if (info.k == AttentionRead::kF16) {
          ScoreHalves(chunk, part, info);
        } else if (info.k == AttentionRead::kI4) {
          ScoreCodes<true>(chunk, info);
        } else {
          ScoreCodes<false>(chunk, info);
        }
      } else {
        if (info.v == AttentionRead::kF16) {
          AddHalves(const_cast<uint8_t*>(chunk), part - 4, info);
        } else if (info.v == AttentionRead::kI4) {
          CodeValues<true, kChannelTiles, kQueryTiles>(chunk, weights_, staged_, geometry_, o_);
        } else {
          CodeValues<false, kChannelTiles, kQueryTiles>(chunk, weights_, staged_, geometry_, o_);
        }
      }
    }
  }

  // Sums what the lanes have of l, after the last page.
  GPU_DEVICE void Finish() {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          l_[n][c] = __fadd_rn(l_[n][c], __shfl_xor_sync(gpu::kAllLanes, l_[n][c], offset));
        }
      }
    }
  }

  // Folds the state into a block's total: o [n][channel tile][element][lane], m and l by query. To
  // be called by one warp after the other, the first one of all with `first`.
  GPU_DEVICE void FoldInto(bool first, float* o, float* m, float* l) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      MergeFactors factors[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int query = 8 * n + lane_ % 4 * 2 + c;
        factors[c] = first ? MergeFactors{m_[n][c], 0.0f, 1.0f}
                           : MergeFactorsOf(m[query], l[query], m_[n][c], l_[n][c]);
      }
      __syncwarp();
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int query = 8 * n + lane_ % 4 * 2 + c;
        if (lane_ < 4) {
          l[query] = MergeValue(factors[c], first ? 0.0f : l[query], l_[n][c]);
          m[query] = factors[c].m;
        }
      }
#pragma unroll
      for (int mt = 0; mt < kChannelTiles; ++mt) {
        if (mt < geometry_.lines) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float* total = o + ((n * geometry_.lines + mt) * 4 + i) * 32 + lane_;
            *total = MergeValue(factors[i % 2], first ? 0.0f : *total, o_[mt][n][i]);
          }
        }
      }
    }
  }

 private:
  GPU_DEVICE int TokenOf(int tile, int element) const {
    return 16 * tile + lane_ / 4 + 8 * (element / 2);
  }

  // Of the query of a column of C. Needed where something is hidden alone: worked out there, so
  // that it does not take registers elsewhere.
  GPU_DEVICE int32_t PositionOf(int n, int c) const {
    return row_position_ + (first_query_ + 8 * n + lane_ % 4 * 2 + c) / geometry_.group;
  }

  // Keeps the scores of a tile of tokens, with kHiddenScore for what a query must not see.
  GPU_DEVICE void KeepScores(int tile, const PageInfo& info, int n, const float (&scores)[4]) {
    float kept[4] = {scores[0], scores[1], scores[2], scores[3]};
    if (masked_) {
      const int32_t last[2] = {PositionOf(n, 0), PositionOf(n, 1)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = TokenOf(tile, i);
        const bool seen =
            ((info.visible >> token) & 1) != 0 && info.position + token <= last[i % 2];
        if (!seen) kept[i] = kHiddenScore;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) top_[n][i % 2] = fmaxf(top_[n][i % 2], kept[i]);
    weights_[(tile * kQueryTiles + n) * 32 + lane_] =
        make_float4(kept[0], kept[1], kept[2], kept[3]);
  }

  // Tiles that are not brought in.
  GPU_DEVICE void HideTiles(uint32_t tiles) {
#pragma unroll 1
    for (; tiles != 0; tiles &= tiles - 1) {
      const int tile = __ffs(static_cast<int>(tiles)) - 1;
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        weights_[(tile * kQueryTiles + n) * 32 + lane_] =
            make_float4(kHiddenScore, kHiddenScore, kHiddenScore, kHiddenScore);
      }
    }
  }

  GPU_DEVICE void ScoreHalves(const uint8_t* chunk, int tile, const PageInfo& info) {
    float scores[kQueryTiles][4];
    HalfScores<kQueryTiles>(chunk, queries_.halves(), geometry_, scores);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const float2 scale =
          *reinterpret_cast<const float2*>(queries_.scale() + 8 * n + lane_ % 4 * 2);
      scores[n][0] = __fmul_rn(scores[n][0], scale.x);
      scores[n][1] = __fmul_rn(scores[n][1], scale.y);
      scores[n][2] = __fmul_rn(scores[n][2], scale.x);
      scores[n][3] = __fmul_rn(scores[n][3], scale.y);
      KeepScores(tile, info, n, scores[n]);
    }
  }

  template <bool kI4>
  GPU_DEVICE void ScoreCodes(const uint8_t* chunk, const PageInfo& info) {
    FoldedQueries<kQueryTiles, kLineGroups> folded;
    FoldQueries<kI4>(chunk + 32 * geometry_.dim, queries_.codes(), geometry_, &folded);
    float scale[kQueryTiles][2], constant[kQueryTiles][2];
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        // Folded by the lanes of row g = query; wanted by those of column 2 t + c.
        const int source = (lane_ % 4 * 2 + c) * 4;
        scale[n][c] = __shfl_sync(gpu::kAllLanes, folded.scale[n], source);
        constant[n][c] = __shfl_sync(gpu::kAllLanes, folded.constant[n], source);
      }
    }
#pragma unroll 1
    for (int tile = 0; tile < 4; ++tile) {
      int32_t dots[kQueryTiles][4];
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) dots[n][i] = static_cast<int32_t>(kMagicBits);
      }
      CodeDots<kI4>(chunk, tile, geometry_, folded, dots);
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        float scores[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[i] = __fmaf_rn(scale[n][i % 2], DotOf(dots[n][i]), constant[n][i % 2]);
        }
        KeepScores(tile, info, n, scores);
      }
    }
  }

  // Replaces the page's scores by weights relative to the new maximum.
  GPU_DEVICE void Softmax() {
    bool higher = false;
    float factor[kQueryTiles][2];
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) {
          top_[n][c] = fmaxf(top_[n][c], __shfl_xor_sync(gpu::kAllLanes, top_[n][c], offset));
        }
        higher = higher || top_[n][c] > m_[n][c];
        const float m = fmaxf(m_[n][c], top_[n][c]);
        factor[n][c] = gpu::Exp2Approx(m_[n][c] - m);
        m_[n][c] = m;
      }
    }
    // A factor of 1 changes nothing, so that leaving all of them out is not seen in the bits.
    if (__any_sync(gpu::kAllLanes, higher)) Rescale(factor);
#pragma unroll 1
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        float4 p = weights_[(tile * kQueryTiles + n) * 32 + lane_];
        p.x = gpu::Exp2Approx(p.x - m_[n][0]);
        p.y = gpu::Exp2Approx(p.y - m_[n][1]);
        p.z = gpu::Exp2Approx(p.z - m_[n][0]);
        p.w = gpu::Exp2Approx(p.w - m_[n][1]);
        l_[n][0] = __fadd_rn(__fadd_rn(l_[n][0], p.x), p.z);
        l_[n][1] = __fadd_rn(__fadd_rn(l_[n][1], p.y), p.w);
        weights_[(tile * kQueryTiles + n) * 32 + lane_] = p;
      }
    }
  }

  GPU_DEVICE void Rescale(const float (&factor)[kQueryTiles][2]) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      l_[n][0] = __fmul_rn(l_[n][0], factor[n][0]);
      l_[n][1] = __fmul_rn(l_[n][1], factor[n][1]);
#pragma unroll
      for (int mt = 0; mt < kChannelTiles; ++mt) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o_[mt][n][i] = __fmul_rn(o_[mt][n][i], factor[n][i % 2]);
      }
    }
  }

  GPU_DEVICE void AddHalves(uint8_t* chunk, int tile, const PageInfo& info) {
    if (masked_) HideValues(chunk, tile, info);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const float4 p4 = weights_[(tile * kQueryTiles + n) * 32 + lane_];
      const float p[4] = {p4.x, p4.y, p4.z, p4.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = 8 * n + lane_ % 4 * 2 + i % 2;
        const int token = lane_ / 4 + 8 * (i / 2);
        *reinterpret_cast<uint32_t*>(staged_ + query * kStagedStride + 4 * token) =
            SplitHalves(p[i]);
      }
    }
    __syncwarp();
    HalfValues<kChannelTiles, kQueryTiles>(chunk, staged_, geometry_, o_);
  }

  // A query that sees a value that is not finite gets NaN for its whole output, the others nothing.
  GPU_DEVICE void HideValues(uint8_t* chunk, int tile, const PageInfo& info) {
    const int first = info.position + 16 * tile;
    uint32_t seen = static_cast<uint32_t>(info.visible >> (16 * tile)) & 0xffffu;
    const int causal = last_position_ - first + 1;
    if (causal < 16) seen &= (1u << max(causal, 0)) - 1;
    const uint32_t bad = ClearValues(chunk, seen, geometry_);
    if (bad == 0) return;
    const int earliest = first + __ffs(static_cast<int>(bad)) - 1;
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (PositionOf(n, c) >= earliest) l_[n][c] = __uint_as_float(0x7fc00000u);
      }
    }
  }

  const AttentionGeometry& geometry_;
  const TileQueries<kQueryTiles>& queries_;
  const int lane_;
  float4* weights_;  // [tile of tokens][n][lane]
  uint8_t* staged_;
  const int32_t row_position_;  // of the row of flat query 0
  const int32_t first_query_;
  int32_t first_position_;
  int32_t last_position_;
  bool masked_ = false;
  float top_[kQueryTiles][2];  // of the page
  float m_[kQueryTiles][2];    // log2 units
  float l_[kQueryTiles][2];    // the lane's part
  float o_[kChannelTiles][kQueryTiles][4];
};

// The state of a split that the block's warps have made together, on its way to global memory.
template <int kQueryTiles>
class BlockState {
 public:
  static constexpr int kQueries = 8 * kQueryTiles;

  GPU_DEVICE BlockState(const AttentionLaunch& launch, const AttentionGeometry& geometry,
                        const AttentionWork& work, int kv_head, uint8_t* shared)
      : geometry_(geometry), queries_(work.queries) {
    // Between pages the scores' memory is free.
    o_ = reinterpret_cast<float*>(shared + geometry.weights);
    m_ = reinterpret_cast<float*>(shared + geometry.totals);
    l_ = m_ + kQueries;
    all_m_ = l_ + kQueries;
    all_l_ = all_m_ + kQueries;
    const int64_t state = work.first_state + int64_t{kv_head} * work.queries;
    const int64_t count = launch.state_count;
    out_o_ = launch.states + state * geometry.dim;
    out_m_ = launch.states + count * geometry.dim + state;
    out_l_ = out_m_ + count;
    if (threadIdx.x < kQueries) all_l_[threadIdx.x] = 0.0f;
  }

  // Folds the warps' states in their order, then the split's into what came before it. By the whole
  // block; nobody may use the scores' memory before it returns.
  template <class Warp>
  GPU_DEVICE void Fold(Warp* warp) {
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < kAttentionWarps; ++w) {
      if (w == static_cast<int>(threadIdx.x / 32)) warp->FoldInto(w == 0, o_, m_, l_);
      __syncthreads();
    }
    const int dim = geometry_.dim;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int query = static_cast<int>(threadIdx.x / 32); query < queries_;
         query += kAttentionWarps) {
      const MergeFactors factors =
          MergeFactorsOf(all_m_[query], all_l_[query], m_[query], l_[query]);
      const float* o = o_ + query / 8 * dim * 8 + query % 2 * 32 + query % 8 / 2;
#pragma unroll 2
      for (int c = lane; c < dim; c += 32) {
        float* out = out_o_ + query * dim + c;
        *out = MergeValue(factors, factors.keep == 0.0f ? 0.0f : *out,
                          o[c / 16 * 128 + c / 8 % 2 * 64 + c % 8 * 4]);
      }
    }
    __syncthreads();
    if (threadIdx.x < kQueries) {
      const int query = static_cast<int>(threadIdx.x);
      const MergeFactors factors =
          MergeFactorsOf(all_m_[query], all_l_[query], m_[query], l_[query]);
      all_l_[query] = MergeValue(factors, all_l_[query], l_[query]);
      all_m_[query] = factors.m;
    }
    __syncthreads();
  }

  GPU_DEVICE void Publish() {
    const int query = static_cast<int>(threadIdx.x);
    if (query >= queries_) return;
    out_m_[query] = all_m_[query];
    out_l_[query] = all_l_[query];
  }

 private:
  const AttentionGeometry& geometry_;
  const int queries_;
  float* o_;
  float* m_;
  float* l_;
  float* all_m_;
  float* all_l_;
  float* out_o_;
  float* out_m_;
  float* out_l_;
};

// Blocks a multiprocessor that registers must allow: as many as shared memory does. Tensor cores of
// compute capability 12 come with 100 KB of it, enough for one.
template <int kChannelTiles, int kQueryTiles>
constexpr int MinBlocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
  return 1;
#else
  return kQueryTiles > 1 || kChannelTiles > 8 ? 2 : 3;
#endif
}

// Grid: (work items, KV heads). Block: kAttentionWarps warps, each with its own pages and pipeline.
template <int kChannelTiles, int kQueryTiles, int kStages>
__global__ void __launch_bounds__(32 * kAttentionWarps, (MinBlocks<kChannelTiles, kQueryTiles>()))
    AttentionKernel(const __grid_constant__ AttentionLaunch launch,
                    const __grid_constant__ AttentionGeometry geometry, int32_t first_work) {
  GPU_DYN_SHARED(uint8_t, shared);
  const AttentionWork work = launch.work[first_work + blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  const int warp_index = static_cast<int>(threadIdx.x / 32);
  TileQueries<kQueryTiles> queries(geometry, shared);
  WarpAttention<kChannelTiles, kQueryTiles> warp(geometry, work, queries, shared);
  // The first pages are on their way while the queries are prepared.
  PageStream<kStages> stream(launch, geometry, work, kv_head, warp.last_position(), shared);
  BlockState<kQueryTiles> state(launch, geometry, work, kv_head, shared);
  queries.Load(launch, work, kv_head);
#pragma unroll 1
  for (int s = 0; s < work.split_count; ++s) {
    warp.Reset();
    const int pages = launch.splits[work.first_split + s].count[warp_index];
#pragma unroll 1
    for (int i = 0; i < pages; ++i) warp.AttendPage(&stream);
    warp.Finish();
    state.Fold(&warp);
  }
  state.Publish();
}

}  // namespace strata::cuda
