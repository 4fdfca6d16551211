#include "tests/kernels/attention_expect.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"

namespace strata {

// Brute force in double. The slack is made of
//  - FP32: a chain of n multiply-adds errs by at most n 2^-24 of the sum of magnitudes. Scores: D
//    terms; folding adds a few sums of like size (factor 8). Outputs: one term a token. exp within
//    2 ulp, merging within a few more: 32 of 2^-24.
//  - int8 queries: each folded value errs by a uniform +-alpha/2, alpha = max |q_c s_c| / 127,
//  times
//    the code's distance from the mean: rms sqrt(21.25) for I4's 16 codes (4 sqrt(1.25) for I2's).
//    So a score has sigma = alpha sqrt(D 21.25 / 12). That error is independent from token to token
//    but for what a channel's codes have in common, allowed for with half of sigma for the page as
//    a whole. An error e_t of the scores moves o by sum p_t e_t (v_t - o) and lse by sum p_t e_t;
//    the second order is below (3 sigma)^2 of the spread.
//  - 7-bit weights: in the same way, beta = max p_t s_t / 127 of a page and group, over 64 tokens.
// Six sigma: the data are fixed, and there are some 10^6 comparisons.
Expected Expect(const TestSequence& sequence, const float* q, int32_t position, int32_t kv_head,
                int32_t dim) {
  Expected e;
  std::vector<std::vector<double>> p(sequence.block_count(), std::vector<double>(64, 0.0));
  std::vector<double> sigma(sequence.block_count(), 0.0);
  double max = -std::numeric_limits<double>::infinity();
  double magnitude = 0;
  for (int32_t b = 0; b < sequence.block_count(); ++b) {
    double folded = 0;
    for (int32_t c = 0; c < dim; ++c) {
      folded = std::max<double>(folded, std::abs(q[c] * sequence.KStep(b, kv_head, c)));
    }
    sigma[b] = folded / 127 * std::sqrt(dim * 21.25 / 12);
    for (int32_t t = 0; t < 64; ++t) {
      const int32_t token = 64 * b + t;
      p[b][t] = -std::numeric_limits<double>::infinity();
      if (token >= sequence.tokens() || token > position) continue;
      if (((sequence.skip(b) >> t) & 1) != 0) continue;
      double score = 0, size = 0;
      for (int32_t c = 0; c < dim; ++c) {
        const double k = sequence.K(b, kv_head)[t * dim + c];
        score += q[c] * k;
        size += std::abs(q[c]) * (std::abs(k) + 16 * sequence.KStep(b, kv_head, c));
      }
      p[b][t] = score;
      max = std::max(max, score);
      magnitude = std::max(magnitude, size);
      e.empty = false;
    }
  }
  e.o.assign(dim, 0.0);
  e.o_slack.assign(dim, 0.0);
  if (e.empty) return e;
  double l = 0;
  for (auto& page : p) {
    for (double& x : page) l += x = std::exp(x - max);
  }
  e.lse = max + std::log(l);
  const double fp32_score = 8 * dim * 0x1p-24 * magnitude;
  const double fp32_sum = (sequence.tokens() + 32) * 0x1p-24;
  double lse_variance = 0, top_sigma = 0;
  for (int32_t b = 0; b < sequence.block_count(); ++b) {
    double mass = 0;
    for (double& x : p[b]) {
      x /= l;
      mass += x;
      lse_variance += sigma[b] * sigma[b] * x * x;
    }
    if (mass > 0) top_sigma = std::max(top_sigma, sigma[b]);
    lse_variance += sigma[b] * sigma[b] * mass * mass / 4;
  }
  const double second = 9 * top_sigma * top_sigma;
  e.lse_slack = 6 * std::sqrt(lse_variance) + second + fp32_score + fp32_sum;
  for (int32_t c = 0; c < dim; ++c) {
    double largest = 0, spread = 0, variance = 0;
    for (int32_t b = 0; b < sequence.block_count(); ++b) {
      for (int32_t t = 0; t < 64; ++t) {
        if (p[b][t] > 0) e.o[c] += p[b][t] * sequence.V(b, kv_head)[t * dim + c];
      }
    }
    for (int32_t b = 0; b < sequence.block_count(); ++b) {
      double common = 0, folded = 0;
      for (int32_t t = 0; t < 64; ++t) {
        if (!(p[b][t] > 0)) continue;
        const double v = sequence.V(b, kv_head)[t * dim + c];
        const double step = sequence.VStep(b, kv_head, t, c);
        largest = std::max(largest, std::abs(v) + 16 * step);
        spread = std::max(spread, std::abs(v - e.o[c]));
        folded = std::max(folded, p[b][t] * step);
        const double moved = p[b][t] * (v - e.o[c]);
        common += moved;
        variance += sigma[b] * sigma[b] * moved * moved;
      }
      variance += sigma[b] * sigma[b] * common * common / 4;
      variance += folded * folded / (127 * 127) * 64 * 21.25 / 12;
    }
    e.o_slack[c] =
        6 * std::sqrt(variance) + (second + 2 * fp32_score) * spread + fp32_sum * largest;
  }
  return e;
}

namespace {

// Compares a state with what is expected; returns the largest error in units of the slack.
void ExpectState(const PartialStates& states, size_t state, const Expected& expected,
                 const std::string& where) {
  const size_t dim = expected.o.size();
  if (expected.empty) {
    EXPECT_EQ(states.l[state], 0.0f) << where;
    EXPECT_EQ(states.m[state], -std::numeric_limits<float>::infinity()) << where;
    for (size_t c = 0; c < dim; ++c) EXPECT_EQ(states.o[state * dim + c], 0.0f) << where;
    return;
  }
  ASSERT_GT(states.l[state], 0.0f) << where;
  EXPECT_NEAR(states.m[state] + std::log(states.l[state]), expected.lse, expected.lse_slack)
      << where;
  for (size_t c = 0; c < dim; ++c) {
    ASSERT_NEAR(states.o[state * dim + c] / states.l[state], expected.o[c], expected.o_slack[c])
        << where << " channel " << c;
  }
}

}  // namespace

PartialStates AttendRuns(AttentionBackend* attention, const Step& step, const std::vector<float>& q,
                         const std::vector<PageRun>& runs) {
  PartialStates states;
  states.Reset(step.rows, step.query_heads, step.head_dim);
  const AttentionSequence sequence{0, step.rows, step.first_position, absl::MakeConstSpan(runs)};
  attention->Attend({step.query_heads, step.kv_heads, step.head_dim}, q.data(),
                    absl::MakeConstSpan(&sequence, 1), &states);
  return states;
}

void ExpectRows(const PartialStates& states, const TestSequence& sequence, const Step& step,
                const std::vector<float>& q, const std::string& where) {
  const int32_t group = step.query_heads / step.kv_heads;
  for (int32_t r = 0; r < step.rows; ++r) {
    for (int32_t h = 0; h < step.query_heads; ++h) {
      const size_t state = size_t{1} * r * step.query_heads + h;
      const Expected expected = Expect(sequence, &q[state * step.head_dim], step.first_position + r,
                                       h / group, step.head_dim);
      ExpectState(states, state, expected,
                  where + " row " + std::to_string(r) + " head " + std::to_string(h));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

namespace {

bool SameBits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace

bool SameRow(const PartialStates& a, int32_t row, const PartialStates& b, int32_t other_row) {
  const size_t heads = a.heads, dim = a.head_dim;
  return SameBits(&a.m[row * heads], &b.m[other_row * heads], heads) &&
         SameBits(&a.l[row * heads], &b.l[other_row * heads], heads) &&
         SameBits(&a.o[row * heads * dim], &b.o[other_row * heads * dim], heads * dim);
}

std::string KindName(const BlockKinds& kinds) {
  const auto name = [](KvKind stored, KvKind read) -> std::string {
    if (stored == KvKind::kF16) return "F16";
    if (stored == KvKind::kI2) return "I2";
    return read == KvKind::kI4 ? "I4" : "I4 as I2";
  };
  return "K " + name(kinds.k, kinds.read_k) + ", V " + name(kinds.v, kinds.read_v);
}

}  // namespace strata
