#pragma once

#include "kernels/cuda/attention_codes.cuh"
#include "kernels/cuda/attention_f16.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_queries.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/attention_weights.cuh"

namespace strata::cuda {

// What one warp makes of its queries and the pages it is given: scores, running softmax and
// weighted values. Elements of C (scores: rows are tokens; o: rows are channels) are as
// attention_f16.cuh says; columns are queries. A page is: StartPage, ScoreChunk or ScorePage for
// K, Softmax, AddChunk or AddPage for V.
template <int kChannelTiles, int kQueryTiles, class Queries, class Weights>
class WarpAttention {
 public:
  static constexpr int kLineGroups = (kChannelTiles + 3) / 4;

  GPU_DEVICE WarpAttention(const AttentionGeometry& geometry, const AttentionWork& work,
                           const Queries& queries, uint8_t* shared)
      : geometry_(geometry),
        queries_(queries),
        weights_(geometry, shared),
        lane_(static_cast<int>(threadIdx.x % 32)),
        row_position_(work.first_position),
        first_query_(work.first_query) {
    const int warp = static_cast<int>(threadIdx.x / 32);
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

  GPU_DEVICE void StartPage(const PageInfo& info) {
    // Whether some query may not see some token.
    masked_ = info.visible != ~uint64_t{0} || info.position + kBlockTokens - 1 > first_position_;
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) top_[n][0] = top_[n][1] = kScoreFloor;
  }
  GPU_DEVICE bool masked() const { return masked_; }

  // Scores of one chunk of K: tile `tile`, or a page of codes.
  GPU_DEVICE void ScoreChunk(const uint8_t* chunk, int tile, const PageInfo& info) {
    if (info.k == AttentionRead::kF16) {
      ScoreHalves<1>(chunk, tile);
    } else {
      ScoreAllCodes(chunk, info);
    }
  }
  // Of all of K at once.
  GPU_DEVICE void ScorePage(const uint8_t* tensor, const PageInfo& info) {
    if (info.k == AttentionRead::kF16) {
      ScoreHalves<4>(tensor, 0);
    } else {
      ScoreAllCodes(tensor, info);
    }
  }

  // Replaces the page's scores by weights relative to the new maximum.
  GPU_DEVICE void Softmax(const PageInfo& info) {
    if (masked_) HideUnseen(info);
    bool higher = false;
    float factor[kQueryTiles][2];
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        top_[n][c] = gpu::ColumnMax(top_[n][c]);
        higher = higher || top_[n][c] > m_[n][c];
        const float m = fmaxf(m_[n][c], top_[n][c]);
        factor[n][c] = gpu::Exp2Approx(m_[n][c] - m);
        m_[n][c] = m;
      }
    }
    // A factor of 1 changes nothing, so that leaving all of them out is not seen in the bits.
    if (__any_sync(gpu::kAllLanes, higher)) Rescale(factor);
#pragma unroll Weights::kTileUnroll
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        float4 p = weights_.Get(tile, n);
        p.x = gpu::Exp2Approx(p.x - m_[n][0]);
        p.y = gpu::Exp2Approx(p.y - m_[n][1]);
        p.z = gpu::Exp2Approx(p.z - m_[n][0]);
        p.w = gpu::Exp2Approx(p.w - m_[n][1]);
        l_[n][0] = __fadd_rn(__fadd_rn(l_[n][0], p.x), p.z);
        l_[n][1] = __fadd_rn(__fadd_rn(l_[n][1], p.y), p.w);
        weights_.Set(tile, n, p);
      }
    }
  }

  // Adds the weighted values of one chunk of V: tile `tile`, or a page of codes. Of an F16 tile of
  // a page of which some query does not see all, what they do not see has been cleared.
  GPU_DEVICE void AddChunk(const uint8_t* chunk, int tile, const PageInfo& info) {
    if (info.v == AttentionRead::kF16) {
      AddHalves(chunk, tile, lane_);
    } else {
      AddAllCodes(chunk, info);
    }
  }
  // Of all of V at once; of F16, the tiles that are bits of `tiles`.
  GPU_DEVICE void AddPage(const uint8_t* tensor, uint32_t tiles, const PageInfo& info) {
    if (info.v == AttentionRead::kF16) {
      const int lane = gpu::FreshLane();
#pragma unroll Weights::kTileUnroll
      for (int tile = 0; tile < 4; ++tile) {
        if (((tiles >> tile) & 1) != 0) AddHalves(tensor + 32 * geometry_.dim * tile, tile, lane);
      }
    } else {
      AddAllCodes(tensor, info);
    }
  }

  // The token at `position` has a value that is not finite, which has been cleared: the queries
  // that see it get NaN for their whole output, the others nothing.
  GPU_DEVICE void Spoil(int32_t position) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (PositionOf(n, c) >= position) l_[n][c] = __uint_as_float(0x7fc00000u);
      }
    }
  }

  // Sums what the lanes have of l, after the last page.
  GPU_DEVICE void Finish() {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) l_[n][c] = gpu::ColumnSum(l_[n][c]);
    }
  }

  // Folds the state into that of a split: o [n][channel tile][element][lane], m and l by query. To
  // be called share after share, the first one of all with `first`.
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
  // Of the query of a column of C. Needed where something is hidden alone: worked out there, so
  // that it does not take registers elsewhere.
  GPU_DEVICE int32_t PositionOf(int n, int c) const {
    return row_position_ + (first_query_ + 8 * n + lane_ % 4 * 2 + c) / geometry_.group;
  }

  // Keeps the scores of a tile of tokens.
  GPU_DEVICE void KeepScores(int tile, int n, const float (&scores)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) top_[n][i % 2] = fmaxf(top_[n][i % 2], scores[i]);
    weights_.Set(tile, n, make_float4(scores[0], scores[1], scores[2], scores[3]));
  }

  // Replaces the scores of what a query must not see by kHiddenScore; tiles that no query sees need
  // have none.
  GPU_DEVICE void HideUnseen(const PageInfo& info) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const int32_t last[2] = {PositionOf(n, 0) - info.position, PositionOf(n, 1) - info.position};
      top_[n][0] = top_[n][1] = kScoreFloor;
#pragma unroll Weights::kTileUnroll
      for (int tile = 0; tile < 4; ++tile) {
        const float4 p = weights_.Get(tile, n);
        float kept[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = 16 * tile + lane_ / 4 + 8 * (i / 2);
          if (((info.visible >> token) & 1) == 0 || token > last[i % 2]) kept[i] = kHiddenScore;
        }
        KeepScores(tile, n, kept);
      }
    }
  }

  template <int kTiles>
  GPU_DEVICE void ScoreHalves(const uint8_t* chunks, int first_tile) {
    float scores[kTiles][kQueryTiles][4];
    HalfScores(chunks, queries_, geometry_, scores);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const float2 scale =
          *reinterpret_cast<const float2*>(queries_.scale() + 8 * n + lane_ % 4 * 2);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float(&s)[4] = scores[tile][n];
        s[0] = __fmul_rn(s[0], scale.x);
        s[1] = __fmul_rn(s[1], scale.y);
        s[2] = __fmul_rn(s[2], scale.x);
        s[3] = __fmul_rn(s[3], scale.y);
        KeepScores(first_tile + tile, n, s);
      }
    }
  }

  GPU_DEVICE void ScoreAllCodes(const uint8_t* chunk, const PageInfo& info) {
    if (info.k == AttentionRead::kI4) {
      ScoreCodes<true>(chunk);
    } else {
      ScoreCodes<false>(chunk);
    }
  }

  template <bool kI4>
  GPU_DEVICE void ScoreCodes(const uint8_t* chunk) {
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
#pragma unroll Weights::kTileUnroll
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
        KeepScores(tile, n, scores);
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

  GPU_DEVICE void AddHalves(const uint8_t* chunk, int tile, int lane) {
    StageWeights<kQueryTiles>(weights_, tile, staged_);
    __syncwarp();
    HalfValues<kChannelTiles, kQueryTiles>(chunk, staged_, geometry_, static_cast<uint32_t>(lane),
                                           o_);
  }

  GPU_DEVICE void AddAllCodes(const uint8_t* chunk, const PageInfo& info) {
    if (info.v == AttentionRead::kI4) {
      CodeValues<true>(chunk, weights_, staged_, geometry_, o_);
    } else {
      CodeValues<false>(chunk, weights_, staged_, geometry_, o_);
    }
  }

  const AttentionGeometry& geometry_;
  const Queries& queries_;
  Weights weights_;
  const int lane_;
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
