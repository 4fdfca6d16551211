// For tests: the integers inside attention over codes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_codes-inl.h"
#include "kernels/cpu/attention_kernels.h"

namespace strata {

// The int8 queries and the integer scores that CodePages makes of one page's K, by the functions
// that attention calls.
template <class Ops>
struct CodeIntegers {
  using Codes = CodePages<Ops>;

  static void Run(const CodeScoreArgs& a) {
    for (int i = 0; i < a.queries;) {
      const bool four = a.queries - i >= kCodeQueriesMax;
      const bool fixed = a.head_dim == 64;
      if (a.bits == CodeBits::kI4) {
        four ? (fixed ? Block<4, true, 64>(a, i) : Block<4, true, 0>(a, i))
             : (fixed ? Block<1, true, 64>(a, i) : Block<1, true, 0>(a, i));
      } else {
        four ? (fixed ? Block<4, false, 64>(a, i) : Block<4, false, 0>(a, i))
             : (fixed ? Block<1, false, 64>(a, i) : Block<1, false, 0>(a, i));
      }
      i += four ? kCodeQueriesMax : 1;
    }
  }

 private:
  template <int kQueries, bool kI4, int kFixed>
  static void Block(const CodeScoreArgs& a, int query) {
    const int dim = a.head_dim;
    const uint16_t* mn = reinterpret_cast<const uint16_t*>(a.k + size_t{16} * dim);
    typename Codes::Folded folded;
    Codes::template Fold<kQueries, kI4, kFixed>(mn, mn + dim, dim, a.q + size_t{1} * query * dim,
                                                dim, &folded);
    alignas(64) float scores[kQueries * kScoreStride];
    for (int i = 0; i < kQueries; ++i) {
      for (int c = 0; c < dim; ++c) {
        a.codes[(query + i) * size_t{1} * dim + c] = folded.bytes[i * dim + c];
      }
      // A score is then the integer itself: below 15 * 127 * 256, so exact.
      folded.scale[i] = 1.0f;
      folded.constant[i] = 0.0f;
    }
    Codes::template Scores<kQueries, kI4, kFixed>({a.k, a.k_lo, mn, mn + dim}, {a.k, a.k_lo}, dim,
                                                  folded, scores);
    for (int i = 0; i < kQueries; ++i) {
      for (int t = 0; t < 64; ++t) {
        a.dots[(query + i) * 64 + t] = static_cast<int32_t>(scores[i * kScoreStride + t]);
      }
    }
  }
};

}  // namespace strata
