#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/attention_test_util.h"

namespace strata {

inline constexpr BlockKinds kF16Block{KvKind::kF16, KvKind::kF16, KvKind::kF16, KvKind::kF16};
inline constexpr BlockKinds kI4Block{KvKind::kI4, KvKind::kI4, KvKind::kI4, KvKind::kI4};
inline constexpr BlockKinds kI2Block{KvKind::kI2, KvKind::kI2, KvKind::kI2, KvKind::kI2};
inline constexpr BlockKinds kI4AsI2Block{KvKind::kI4, KvKind::kI4, KvKind::kI2, KvKind::kI2};

// "K I4 as I2, V F16".
std::string KindName(const BlockKinds& kinds);

// The right answer of one query, and how far a correct backend may be from it.
struct Expected {
  std::vector<double> o, o_slack;  // o / l
  double lse = 0, lse_slack = 0;   // m + log l
  bool empty = true;
};
Expected Expect(const TestSequence& sequence, const float* q, int32_t position, int32_t kv_head,
                int32_t dim);

// Rows of queries over one sequence.
struct Step {
  int32_t query_heads, kv_heads, head_dim;
  int32_t rows;
  int32_t first_position;
};

// What `attention` makes of the runs, from empty states.
PartialStates AttendRuns(AttentionBackend* attention, const Step& step, const std::vector<float>& q,
                         const std::vector<PageRun>& runs);

// Expects every state of the step within its slack; stops at the first that is not.
void ExpectRows(const PartialStates& states, const TestSequence& sequence, const Step& step,
                const std::vector<float>& q, const std::string& where);

// Whether row `row` of `a` has the bits of row `other_row` of `b`.
bool SameRow(const PartialStates& a, int32_t row, const PartialStates& b, int32_t other_row);

}  // namespace strata
