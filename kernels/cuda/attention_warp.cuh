#pragma once

#include "kernels/cuda/attention_codes.cuh"
#include "kernels/cuda/attention_f16.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_queries.cuh"
#include "kernels/cuda/attention_stream.cuh"

namespace strata::cuda {

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

}  // namespace strata::cuda
