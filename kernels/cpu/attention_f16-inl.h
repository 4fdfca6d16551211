// F16 pages: scores and weighted values in FP32, once for all instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata {

// Ops is the vector vocabulary of isa_<isa>-inl.h. A score is one chain of multiply-adds over the
// channels and an output one chain over the tokens, whatever the register block: that is what makes
// a query's bits independent of the queries beside it.
template <class Ops>
struct F16Pages {
  using F = typename Ops::F;
  static constexpr int kLanes = Ops::kLanes;
  static constexpr int kTokens = 64;

  // Queries of a block: a row of q or of weights is `stride` floats.
  struct Queries {
    const float* x;
    size_t stride;
    int count;
  };

  // scores[i][t] = q_i . k_t for the page's 64 tokens. `next` is what to fetch ahead.
  static void Scores(const uint8_t* k, const uint8_t* next, int dim, const Queries& q,
                     float* scores, size_t scores_stride) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(k);
    for (int i = 0; i < q.count;) {
      const int left = q.count - i;
      const int block = left < Ops::kBlockQueries ? left : Ops::kBlockQueries;
      const float* x = q.x + i * q.stride;
      float* out = scores + i * scores_stride;
      ScoreBlock(block, halves, next, dim, x, q.stride, out, scores_stride);
      i += block;
    }
  }

  // o[i] += sum over tokens [begin, end) of p[i][t] v_t.
  static void Values(const uint8_t* v, const uint8_t* next, int dim, int begin, int end,
                     const Queries& p, float* o) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(v);
    for (int i = 0; i < p.count;) {
      const int left = p.count - i;
      const int block = left < Ops::kBlockQueries ? left : Ops::kBlockQueries;
      const ValueArgs args{
          halves, next, dim, begin, end, p.x + i * p.stride, p.stride, o + size_t{1} * i * dim};
      for (int c = 0; c < dim;) {
        const int vectors = (dim - c) / kLanes;
        c += kLanes * ValueBlock(block, vectors, c, args);
      }
      i += block;
    }
  }

 private:
  struct ValueArgs {
    const uint16_t* v;
    const uint8_t* next;
    int dim;
    int begin, end;
    const float* p;
    size_t p_stride;
    float* o;
  };

  template <int kQueries>
  static void ScoreTiles(const uint16_t* k, const uint8_t* next, int dim, const float* q,
                         size_t q_stride, float* out, size_t out_stride) {
    constexpr int kVectors = Ops::kBlockVectors;
    constexpr int kBlockTokens = kVectors * kLanes;
    for (int t = 0; t < kTokens; t += kBlockTokens) {
      F sum[kQueries][kVectors];
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
        for (int w = 0; w < kVectors; ++w) sum[i][w] = Ops::Zero();
      }
      const uint8_t* ahead = next + size_t{2} * t * dim;
      for (int c = 0; c < dim; ++c) {
        F x[kVectors];
#pragma GCC unroll 8
        for (int w = 0; w < kVectors; ++w) {
          const int token = t + w * kLanes;
          x[w] = Ops::LoadHalf(k + (token / 16 * dim + c) * 16 + token % 16);
        }
#pragma GCC unroll 8
        for (int b = 0; b < 2 * kBlockTokens; b += 64) {
          Ops::Prefetch(ahead + c * 2 * kBlockTokens + b);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kQueries; ++i) {
          const F factor = Ops::Set1(q[i * q_stride + c]);
#pragma GCC unroll 8
          for (int w = 0; w < kVectors; ++w) sum[i][w] = Ops::Fma(factor, x[w], sum[i][w]);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
        for (int w = 0; w < kVectors; ++w) {
          Ops::Store(out + i * out_stride + t + w * kLanes, sum[i][w]);
        }
      }
    }
  }

  static void ScoreBlock(int queries, const uint16_t* k, const uint8_t* next, int dim,
                         const float* q, size_t q_stride, float* out, size_t out_stride) {
    switch (queries) {
      case 1:
        return ScoreTiles<1>(k, next, dim, q, q_stride, out, out_stride);
      case 2:
        return ScoreTiles<2>(k, next, dim, q, q_stride, out, out_stride);
      case 3:
        return ScoreTiles<3>(k, next, dim, q, q_stride, out, out_stride);
      case 4:
        return ScoreTiles<4>(k, next, dim, q, q_stride, out, out_stride);
      case 5:
        return ScoreTiles<5>(k, next, dim, q, q_stride, out, out_stride);
      default:
        return ScoreTiles<6>(k, next, dim, q, q_stride, out, out_stride);
    }
  }

  template <int kQueries, int kVectors>
  static void ValueTile(int channel, const ValueArgs& a) {
    F sum[kQueries][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
      for (int w = 0; w < kVectors; ++w) {
        sum[i][w] = Ops::Load(a.o + i * a.dim + channel + w * kLanes);
      }
    }
    for (int t = a.begin; t < a.end; ++t) {
      const uint16_t* row = a.v + t * a.dim + channel;
      F x[kVectors];
#pragma GCC unroll 8
      for (int w = 0; w < kVectors; ++w) x[w] = Ops::LoadHalf(row + w * kLanes);
      const uint8_t* ahead = a.next + 2 * (t * a.dim + channel);
#pragma GCC unroll 8
      for (int b = 0; b < 2 * kVectors * kLanes; b += 64) Ops::Prefetch(ahead + b);
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
        const F weight = Ops::Set1(a.p[i * a.p_stride + t]);
#pragma GCC unroll 8
        for (int w = 0; w < kVectors; ++w) sum[i][w] = Ops::Fma(weight, x[w], sum[i][w]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 8
      for (int w = 0; w < kVectors; ++w) {
        Ops::Store(a.o + i * a.dim + channel + w * kLanes, sum[i][w]);
      }
    }
  }

  template <int kQueries>
  static int ValueTiles(int vectors, int channel, const ValueArgs& a) {
    if (vectors >= Ops::kBlockVectors) {
      ValueTile<kQueries, Ops::kBlockVectors>(channel, a);
      return Ops::kBlockVectors;
    }
    if (vectors >= 2) {
      ValueTile<kQueries, 2>(channel, a);
      return 2;
    }
    ValueTile<kQueries, 1>(channel, a);
    return 1;
  }

  // Returns how many vectors of channels it did.
  static int ValueBlock(int queries, int vectors, int channel, const ValueArgs& a) {
    switch (queries) {
      case 1:
        return ValueTiles<1>(vectors, channel, a);
      case 2:
        return ValueTiles<2>(vectors, channel, a);
      case 3:
        return ValueTiles<3>(vectors, channel, a);
      case 4:
        return ValueTiles<4>(vectors, channel, a);
      case 5:
        return ValueTiles<5>(vectors, channel, a);
      default:
        return ValueTiles<6>(vectors, channel, a);
    }
  }
};

}  // namespace strata
