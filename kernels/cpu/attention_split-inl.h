// Attention over one split of pages: scores of all of them, one softmax, weighted values; once for
// all instruction sets. Included by attention_<isa>.cc alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_codes-inl.h"
#include "kernels/cpu/attention_f16-inl.h"
#include "kernels/cpu/attention_kernels.h"

namespace strata {

template <class Ops>
class SplitAttention {
 public:
  static constexpr AttentionKernels Table() { return {&AttendSplit, &Merge, &Exp2}; }

  static void AttendSplit(const SplitArgs& a) {
    for (int i = 0; i < a.page_count; ++i) PageScores(a, i);
    Softmax(a);
    const size_t values = size_t{1} * a.queries * a.head_dim;
    for (size_t c = 0; c < values; c += kLanes) Ops::Store(a.out.o + c, Ops::Zero());
    for (int i = 0; i < a.page_count; ++i) PageValues(a, i);
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
  // The first row whose position reaches the page, as a query index.
  static int FirstQuery(const SplitArgs& a, const HeadPage& page) {
    const int32_t row = page.position - a.first_position;
    return row <= 0 ? 0 : row * a.group;
  }
  // What to fetch while page `i` is read for K or V.
  static const HeadPage& AfterK(const SplitArgs& a, int i) {
    return i + 1 < a.page_count ? a.pages[i + 1] : a.pages[0];
  }
  static const HeadPage& AfterV(const SplitArgs& a, int i) {
    if (i + 1 < a.page_count) return a.pages[i + 1];
    return a.next != nullptr ? *a.next : a.pages[i];
  }

  static typename Codes::Planes KPlanes(const HeadPage& page, int dim) {
    const uint16_t* mn = reinterpret_cast<const uint16_t*>(page.k + size_t{16} * dim);
    return {page.k, page.k_lo, mn, mn + dim, page.k_bits == CodeBits::kI4};
  }
  static typename Codes::Planes VPlanes(const HeadPage& page, int dim, int v_group) {
    const uint16_t* mn = reinterpret_cast<const uint16_t*>(page.v + size_t{16} * dim);
    return {page.v, page.v_lo, mn, mn + dim / v_group * kTokens, page.v_bits == CodeBits::kI4};
  }

  static void PageScores(const SplitArgs& a, int index) {
    const HeadPage& page = a.pages[index];
    const int32_t last = a.first_position + a.queries / a.group - 1;
    const bool hidden = Visible(page, last) == 0;
    int first = hidden ? a.queries : FirstQuery(a, page);
    if (first > a.queries) first = a.queries;
    float* scores = a.scores + index * kTokens;
    for (int i = 0; i < first; ++i) {
      for (int t = 0; t < kTokens; t += kLanes) {
        Ops::Store(scores + size_t{1} * i * kScoreStride + t, Ops::Set1(kHiddenScore));
      }
    }
    if (hidden) return;
    if (page.k_bits == CodeBits::kF16) {
      const bool last_page = index + 1 == a.page_count;
      const uint8_t* next = last_page ? a.pages[0].v : a.pages[index + 1].k;
      F16::Scores(page.k, next, a.head_dim,
                  {a.q + size_t{1} * first * a.head_dim, static_cast<size_t>(a.head_dim),
                   a.queries - first},
                  scores + size_t{1} * first * kScoreStride, kScoreStride);
    } else {
      CodeScores(a, index, first);
    }
    if (page.visible == ~uint64_t{0} && a.first_position >= page.position + kTokens - 1) return;
    for (int i = first; i < a.queries; ++i) {
      const uint64_t visible = Visible(page, a.first_position + i / a.group);
      if (visible != ~uint64_t{0}) Hide(visible, scores + size_t{1} * i * kScoreStride);
    }
  }

  static void Hide(uint64_t visible, float* scores) {
    for (int t = 0; t < kTokens; t += kLanes) {
      const uint32_t mask = static_cast<uint32_t>(visible >> t);
      Ops::Store(scores + t, Ops::Keep(Ops::Load(scores + t), mask, Ops::Set1(kHiddenScore)));
    }
  }

  static void CodeScores(const SplitArgs& a, int index, int first) {
    const HeadPage& page = a.pages[index];
    const bool last_page = index + 1 == a.page_count;
    const typename Codes::Planes k = KPlanes(page, a.head_dim);
    const typename Codes::Planes next = last_page ? VPlanes(a.pages[0], a.head_dim, a.v_group)
                                                  : KPlanes(a.pages[index + 1], a.head_dim);
    for (int i = first; i < a.queries; i += kCodeQueriesMax) {
      const float* q = a.q + size_t{1} * i * a.head_dim;
      float* scores = a.scores + size_t{1} * i * kScoreStride + index * kTokens;
      const int count = a.queries - i < kCodeQueriesMax ? a.queries - i : kCodeQueriesMax;
      WithQueries(count, k.is_i4, [&](auto queries, auto is_i4) {
        Codes::template Scores<queries.kValue, is_i4.kValue>(k, next, a.head_dim, q, a.folded,
                                                             scores);
      });
    }
  }

  static void Softmax(const SplitArgs& a) {
    const int tokens = a.page_count * kTokens;
    for (int i = 0; i < a.queries; ++i) {
      float* scores = a.scores + size_t{1} * i * kScoreStride;
      F top = Ops::Set1(kScoreFloor);
      for (int t = 0; t < tokens; t += kLanes) top = Ops::Max(top, Ops::Load(scores + t));
      const float m = Ops::ReduceMax(top);
      const F max = Ops::Set1(m);
      F sum = Ops::Zero();
      for (int t = 0; t < tokens; t += kLanes) {
        const F p = Ops::Exp2(Ops::Sub(Ops::Load(scores + t), max));
        sum = Ops::Add(sum, p);
        Ops::Store(scores + t, p);
      }
      a.out.m[i] = m;
      a.out.l[i] = Ops::ReduceAdd(sum);
    }
  }

  static void PageValues(const SplitArgs& a, int index) {
    const HeadPage& page = a.pages[index];
    const int32_t last = a.first_position + a.queries / a.group - 1;
    const uint64_t visible = Visible(page, last);
    if (visible == 0) return;
    const int first = FirstQuery(a, page);
    if (page.v_bits != CodeBits::kF16) {
      CodeValues(a, index, first);
      return;
    }
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
    const HeadPage& after = AfterV(a, index);
    const uint8_t* next = index + 1 < a.page_count ? after.v : after.k;
    const float* p = a.scores + size_t{1} * first * kScoreStride + index * kTokens;
    while (visible != 0) {
      const int begin = __builtin_ctzll(visible);
      const uint64_t hidden = ~visible >> begin;
      const int end = hidden == 0 ? kTokens : begin + __builtin_ctzll(hidden);
      F16::Values(page.v, next, a.head_dim, begin, end, {p, kScoreStride, count},
                  a.out.o + size_t{1} * first * a.head_dim);
      visible = end == kTokens ? 0 : visible & ~((uint64_t{1} << end) - 1);
    }
  }

  static void CodeValues(const SplitArgs& a, int index, int first) {
    const HeadPage& page = a.pages[index];
    const typename Codes::Planes v = VPlanes(page, a.head_dim, a.v_group);
    const HeadPage& after = AfterV(a, index);
    const typename Codes::Planes next = index + 1 < a.page_count
                                            ? VPlanes(after, a.head_dim, a.v_group)
                                            : KPlanes(after, a.head_dim);
    for (int i = first; i < a.queries; i += kCodeQueriesMax) {
      const float* p = a.scores + size_t{1} * i * kScoreStride + index * kTokens;
      float* o = a.out.o + size_t{1} * i * a.head_dim;
      const int count = a.queries - i < kCodeQueriesMax ? a.queries - i : kCodeQueriesMax;
      WithQueries(count, v.is_i4, [&](auto queries, auto is_i4) {
        Codes::template Values<queries.kValue, is_i4.kValue>(v, next, a.head_dim, a.v_group, p,
                                                             a.folded, o);
      });
    }
  }

  template <int kInt>
  struct Constant {
    static constexpr int kValue = kInt;
  };

  // Calls body(Constant<queries>, Constant<is_i4>).
  template <class Body>
  static void WithQueries(int queries, bool is_i4, const Body& body) {
    switch (queries) {
      case 1:
        return is_i4 ? body(Constant<1>(), Constant<1>()) : body(Constant<1>(), Constant<0>());
      case 2:
        return is_i4 ? body(Constant<2>(), Constant<1>()) : body(Constant<2>(), Constant<0>());
      case 3:
        return is_i4 ? body(Constant<3>(), Constant<1>()) : body(Constant<3>(), Constant<0>());
      default:
        return is_i4 ? body(Constant<4>(), Constant<1>()) : body(Constant<4>(), Constant<0>());
    }
  }
};

}  // namespace strata
