#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace strata {

void PartialStates::Reset(int32_t row_count, int32_t head_count, int32_t dim) {
  rows = row_count;
  heads = head_count;
  head_dim = dim;
  const size_t states = size_t{1} * rows * heads;
  if (m.size() < states) {
    m.resize(states);
    l.resize(states);
  }
  if (o.size() < states * dim) o.resize(states * dim);
  std::fill_n(m.begin(), states, -std::numeric_limits<float>::infinity());
  std::fill_n(l.begin(), states, 0.0f);
  std::fill_n(o.begin(), states * dim, 0.0f);
}

void AttentionBackend::AttendAll(const AttentionShape& shape, int32_t rows, const float* q,
                                 absl::Span<const AttentionSequence> sequences, float* out) {
  states_.Reset(rows, shape.query_heads, shape.head_dim);
  Attend(shape, q, sequences, &states_);
  FinishStates(states_, out);
}

void MergeStates(const PartialStates& other, PartialStates* states) {
  STRATA_CHECK(other.rows == states->rows && other.heads == states->heads &&
               other.head_dim == states->head_dim);
  const size_t count = size_t{1} * states->rows * states->heads;
  const size_t dim = states->head_dim;
  for (size_t i = 0; i < count; ++i) {
    if (other.l[i] == 0.0f) continue;  // the empty state: an exact identity (A1)
    const float m = std::max(states->m[i], other.m[i]);
    // exp(-inf - m) is exactly 0, so an empty target takes the other's bits.
    const float keep = std::exp(states->m[i] - m);
    const float add = std::exp(other.m[i] - m);
    states->m[i] = m;
    states->l[i] = states->l[i] * keep + other.l[i] * add;
    float* o = states->o.data() + i * dim;
    const float* p = other.o.data() + i * dim;
    for (size_t c = 0; c < dim; ++c) o[c] = o[c] * keep + p[c] * add;
  }
}

void FinishStates(const PartialStates& states, float* out) {
  const size_t count = size_t{1} * states.rows * states.heads;
  const size_t dim = states.head_dim;
  for (size_t i = 0; i < count; ++i) {
    const float inverse = states.l[i] > 0.0f ? 1.0f / states.l[i] : 0.0f;
    for (size_t c = 0; c < dim; ++c) out[i * dim + c] = states.o[i * dim + c] * inverse;
  }
}

}  // namespace strata
