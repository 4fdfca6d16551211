// Attention over one split of pages: scores of all of them, one softmax, weighted values; once for
// all instruction sets. Included by attention_<isa>.cc alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_code_scores-inl.h"
#include "kernels/cpu/attention_codes-inl.h"
#include "kernels/cpu/attention_f16-inl.h"
#include "kernels/cpu/attention_kernels.h"

namespace strata {

template <class Ops>
class SplitAttention {
 public:
  static constexpr AttentionKernels Table() {
    return {&AttendSplit, &Merge, &Exp2, &CodeIntegers<Ops>::Run, Ops::kPageCosts};
  }

  static void AttendSplit(const SplitArgs& a) {
    if (a.first) PrefetchPages(a);
    Scores(a);
    Softmax(a);
    const size_t values = size_t{1} * a.queries * a.head_dim;
    for (size_t c = 0; c < values; c += kLanes) Ops::Store(a.out.o + c, Ops::Zero());
    Values(a);
  }

  static void Merge(int32_t count, int32_t head_dim, const StateView& source,
                    const StateView& target) {
    for (int i = 0; i < count; ++i) {
      if (source.l[i] == 0.0f) continue;  // empty: an exact identity (A1)
      const float* add = source.o + size_t{1} * i * head_dim;
      float* o = target.o + size_t{1} * i * head_dim;
      // An empty target takes the source's bits: its factor is 0 and the other one is 1.
      const bool empty = target.l[i] == 0.0f;
      const float m = empty || source.m[i] > target.m[i] ? source.m[i] : target.m[i];
      const F keep = empty ? Ops::Zero() : Ops::Exp2(Ops::Set1(target.m[i] - m));
      const F gain = Ops::Exp2(Ops::Set1(source.m[i] - m));
      for (int c = 0; c < head_dim; c += kLanes) {
        const F kept = empty ? Ops::Zero() : Ops::Mul(Ops::Load(o + c), keep);
        Ops::Store(o + c, Ops::Fma(Ops::Load(add + c), gain, kept));
      }
      alignas(64) float l[kLanes];
      const F kept = empty ? Ops::Zero() : Ops::Mul(Ops::Set1(target.l[i]), keep);
      Ops::Store(l, Ops::Fma(Ops::Set1(source.l[i]), gain, kept));
      target.l[i] = l[0];
      target.m[i] = m;
    }
  }

  static void Exp2(const float* x, int32_t count, float* out) {
    alignas(64) float lanes[kLanes];
    for (int i = 0; i < count; ++i) {
      Ops::Store(lanes, Ops::Exp2(Ops::Set1(x[i])));
      out[i] = lanes[0];
    }
  }

 private:
  using F = typename Ops::F;
  using F16 = F16Pages<Ops>;
  using Codes = CodePages<Ops>;
  static constexpr int kLanes = Ops::kLanes;
  static constexpr int kTokens = 64;
  // The score of a hidden token, and the floor of a split's maximum: far enough apart that a hidden
  // token's weight is exactly 0 even where every token is hidden, and never NaN as -inf would make.
  static constexpr float kHiddenScore = -1e30f;
  static constexpr float kScoreFloor = -1e29f;

  // Tokens of the page that a row at `position` sees.
  static uint64_t Visible(const HeadPage& page, int32_t position) {
    const int32_t causal = position - page.position + 1;
    if (causal <= 0) return 0;
    return causal >= kTokens ? page.visible : page.visible & ((uint64_t{1} << causal) - 1);
  }
  static int32_t LastPosition(const SplitArgs& a) {
    return a.first_position + a.queries / a.group - 1;
  }
  // The first query whose position reaches the page.
  static int FirstQuery(const SplitArgs& a, const HeadPage& page) {
    const int32_t row = page.position - a.first_position;
    const int32_t query = row <= 0 ? 0 : row * a.group;
    return query < a.queries ? query : a.queries;
  }
  // The page whose K (V) is fetched while K (V) of page `index` is read. So far ahead, and into the
  // L2 cache, enough misses are under way to use the memory's bandwidth: the L1 cache follows few.
  static const HeadPage& Next(const SplitArgs& a, int index) {
    return index < a.next_count ? a.next[index] : a.pages[index];
  }
  static float* ScoresOf(const SplitArgs& a, int query, int index) {
    return a.scores + size_t{1} * query * kScoreStride + index * kTokens;
  }
  static typename Codes::Planes KPlanes(const HeadPage& page, int dim) {
    const uint16_t* mn = reinterpret_cast<const uint16_t*>(page.k + size_t{16} * dim);
    return {page.k, page.k_lo, mn, mn + dim};
  }
  static typename Codes::Planes VPlanes(const HeadPage& page, int dim, int v_group) {
    const uint16_t* mn = reinterpret_cast<const uint16_t*>(page.v + size_t{16} * dim);
    return {page.v, page.v_lo, mn, mn + dim / v_group * kTokens};
  }

  // ---- scores

  static void Scores(const SplitArgs& a) {
    bool codes = false;
    for (int i = 0; i < a.page_count; ++i) {
      if (a.pages[i].k_bits == CodeBits::kF16) {
        F16Scores(a, i);
      } else {
        codes = true;
      }
    }
    if (codes) {
      for (int i = 0; i < a.queries; i += kCodeQueriesMax) {
        WithUpToFour(a.queries - i, [&](auto queries) { CodeScores<queries.kValue>(a, i); });
      }
    }
    for (int i = 0; i < a.page_count; ++i) HideTokens(a, i);
  }

  static void F16Scores(const SplitArgs& a, int index) {
    const HeadPage& page = a.pages[index];
    const int first = FirstQuery(a, page);
    F16::Scores(
        page.k, Next(a, index).k, a.head_dim,
        {a.q + size_t{1} * first * a.head_dim, static_cast<size_t>(a.head_dim), a.queries - first},
        ScoresOf(a, first, index), kScoreStride);
  }

  // One block of queries over all pages of codes.
  template <int kQueries>
  static void CodeScores(const SplitArgs& a, int query) {
    typename Codes::Folded folded;
    const int dim = a.head_dim;
    const float* q = a.q + size_t{1} * query * dim;
    for (int i = 0; i < a.page_count; ++i) {
      const HeadPage& page = a.pages[i];
      if (page.k_bits == CodeBits::kF16 || FirstQuery(a, page) >= query + kQueries) continue;
      const typename Codes::Planes k = KPlanes(page, dim);
      const HeadPage& next = Next(a, i);
      PrefetchParams(next.k, dim, 4 * dim);
      WithBits(page.k_bits, dim == 64, [&](auto is_i4, auto is_64) {
        constexpr bool kI4 = is_i4.kValue != 0;
        constexpr int kFixed = is_64.kValue * 64;
        Codes::template Fold<kQueries, kI4, kFixed>(k.mn, k.s, dim, q, dim, &folded);
        Codes::template Scores<kQueries, kI4, kFixed>(k, {next.k, next.k_lo}, dim, folded,
                                                      ScoresOf(a, query, i));
      });
    }
  }

  // Gives tokens that a query must not see the hidden score.
  static void HideTokens(const SplitArgs& a, int index) {
    const HeadPage& page = a.pages[index];
    if (page.visible == ~uint64_t{0} && a.first_position >= page.position + kTokens - 1) return;
    for (int i = 0; i < a.queries; ++i) {
      const uint64_t visible = Visible(page, a.first_position + i / a.group);
      if (visible == ~uint64_t{0}) continue;
      float* scores = ScoresOf(a, i, index);
      for (int t = 0; t < kTokens; t += kLanes) {
        const uint32_t mask = static_cast<uint32_t>(visible >> t);
        Ops::Store(scores + t, Ops::Keep(Ops::Load(scores + t), mask, Ops::Set1(kHiddenScore)));
      }
    }
  }

  // ---- softmax

  // Replaces scores by weights relative to the query's maximum over the split.
  static void Softmax(const SplitArgs& a) {
    const int tokens = a.page_count * kTokens;
    for (int i = 0; i < a.queries; ++i) {
      float* scores = ScoresOf(a, i, 0);
      F top = Ops::Set1(kScoreFloor);
      for (int t = 0; t < tokens; t += kTokens) {
#pragma GCC unroll 4
        for (int u = 0; u < kTokens; u += kLanes) top = Ops::Max(top, Ops::Load(scores + t + u));
      }
      const float m = Ops::ReduceMax(top);
      const F max = Ops::Set1(m);
      F sum = Ops::Zero();
      for (int t = 0; t < tokens; t += kTokens) {
#pragma GCC unroll 4
        for (int u = 0; u < kTokens; u += kLanes) {
          const F p = Ops::Exp2(Ops::Sub(Ops::Load(scores + t + u), max));
          sum = Ops::Add(sum, p);
          Ops::Store(scores + t + u, p);
        }
      }
      a.out.m[i] = m;
      a.out.l[i] = Ops::ReduceAdd(sum);
    }
  }

  // ---- values

  static void Values(const SplitArgs& a) {
    // Page by page in stretches of one kind: an output is one chain over the tokens.
    for (int begin = 0; begin < a.page_count;) {
      if (a.pages[begin].v_bits == CodeBits::kF16) {
        F16Values(a, begin);
        ++begin;
        continue;
      }
      int end = begin + 1;
      while (end < a.page_count && a.pages[end].v_bits != CodeBits::kF16) ++end;
      for (int i = 0; i < a.queries; i += kCodeQueriesMax) {
        WithUpToFour(a.queries - i, [&](auto queries) {
          WithUpToFour(a.v_group / 16, [&](auto columns) {
            CodeValues<queries.kValue, columns.kValue>(a, begin, end, i);
          });
        });
      }
      begin = end;
    }
  }

  static void F16Values(const SplitArgs& a, int index) {
    const HeadPage& page = a.pages[index];
    const uint64_t visible = Visible(page, LastPosition(a));
    const int first = FirstQuery(a, page);
    // Rows of one pass see different tokens where the page crosses the causal edge; those that a
    // row must not see have weight 0, which is harmless unless the value is not a number.
    const bool edge = a.first_position < page.position + kTokens - 1 && a.queries > a.group;
    if (edge &&
        !Ops::AllFinite(reinterpret_cast<const uint16_t*>(page.v), size_t{kTokens} * a.head_dim)) {
      for (int i = first; i < a.queries; i += a.group) {
        VisibleValues(a, index, Visible(page, a.first_position + i / a.group), i, a.group);
      }
      return;
    }
    VisibleValues(a, index, visible, first, a.queries - first);
  }

  // F16 values of the tokens in `visible`, one stretch of them after the other.
  static void VisibleValues(const SplitArgs& a, int index, uint64_t visible, int first, int count) {
    const HeadPage& page = a.pages[index];
    const uint8_t* next = Next(a, index).v;
    while (visible != 0) {
      const int begin = __builtin_ctzll(visible);
      const uint64_t hidden = ~visible >> begin;
      const int end = hidden == 0 ? kTokens : begin + __builtin_ctzll(hidden);
      F16::Values(page.v, next, a.head_dim, begin, end,
                  {ScoresOf(a, first, index), kScoreStride, count},
                  a.out.o + size_t{1} * first * a.head_dim);
      visible = end == kTokens ? 0 : visible & ~((uint64_t{1} << end) - 1);
    }
  }

  // One block of queries over pages [begin, end), all of codes, V group by V group. The constants
  // of the folds are added once, at the end.
  template <int kQueries, int kColumns>
  static void CodeValues(const SplitArgs& a, int begin, int end, int query) {
    const int dim = a.head_dim;
    float* o = a.out.o + size_t{1} * query * dim;
    typename Codes::Folded folded;
    for (int g = 0; g < dim / (16 * kColumns); ++g) {
      float constant[kQueries] = {};
      for (int i = begin; i < end; ++i) {
        const HeadPage& page = a.pages[i];
        if (FirstQuery(a, page) >= query + kQueries) continue;
        const HeadPage& next = Next(a, i);
        PrefetchParams(next.v + g * 4 * kTokens, dim, 4 * kTokens);
        const typename Codes::Planes v = VPlanes(page, dim, a.v_group);
        WithBits(page.v_bits, true, [&](auto is_i4, auto) {
          constexpr bool kI4 = is_i4.kValue != 0;
          Codes::template Fold<kQueries, kI4, kTokens>(v.mn + g * kTokens, v.s + g * kTokens,
                                                       kTokens, ScoresOf(a, query, i), kScoreStride,
                                                       &folded);
          Codes::template Values<kQueries, kI4, kColumns>(v, {next.v, next.v_lo}, dim, g * kColumns,
                                                          folded, o);
        });
        for (int j = 0; j < kQueries; ++j) constant[j] += folded.constant[j];
      }
      for (int j = 0; j < kQueries; ++j) {
        float* group = o + j * dim + g * 16 * kColumns;
        for (int c = 0; c < 16 * kColumns; c += kLanes) {
          Ops::Store(group + c, Ops::Add(Ops::Load(group + c), Ops::Set1(constant[j])));
        }
      }
    }
  }

  // Fetches the split's own pages, where no split before it did: all of K, which is read first,
  // then V. Page by page, each would begin with misses that nothing overlaps.
  static void PrefetchPages(const SplitArgs& a) {
    for (int i = 0; i < a.page_count; ++i) {
      const HeadPage& page = a.pages[i];
      PrefetchRegion(page.k, page.k_lo, page.k_bits, a.head_dim, 4 * a.head_dim);
    }
    const int v_params = 4 * a.head_dim / a.v_group * kTokens;
    for (int i = 0; i < a.page_count; ++i) {
      const HeadPage& page = a.pages[i];
      PrefetchRegion(page.v, page.v_lo, page.v_bits, a.head_dim, v_params);
    }
  }

  static void PrefetchRegion(const uint8_t* region, const uint8_t* lo, CodeBits bits, int dim,
                             int params) {
    const int plane = 16 * dim;
    const int bytes = bits == CodeBits::kF16 ? 8 * plane : plane + params;
    for (int b = 0; b < bytes; b += 64) Ops::Prefetch(region + b);
    if (bits != CodeBits::kI4) return;
    for (int b = 0; b < plane; b += 64) Ops::Prefetch(lo + b);
  }

  // Parameters lie behind the plane.
  static void PrefetchParams(const uint8_t* region, int dim, int bytes) {
    for (int b = 0; b < bytes; b += 64) Ops::Prefetch(region + size_t{16} * dim + b);
  }

  // ---- constants from numbers

  template <int kInt>
  struct Constant {
    static constexpr int kValue = kInt;
  };

  // Calls body(Constant<min(count, 4)>).
  template <class Body>
  static void WithUpToFour(int count, const Body& body) {
    switch (count) {
      case 1:
        return body(Constant<1>());
      case 2:
        return body(Constant<2>());
      case 3:
        return body(Constant<3>());
      default:
        return body(Constant<4>());
    }
  }

  template <class Body>
  static void WithBits(CodeBits bits, bool flag, const Body& body) {
    if (bits == CodeBits::kI4) {
      return flag ? body(Constant<1>(), Constant<1>()) : body(Constant<1>(), Constant<0>());
    }
    return flag ? body(Constant<0>(), Constant<1>()) : body(Constant<0>(), Constant<0>());
  }
};

}  // namespace strata
