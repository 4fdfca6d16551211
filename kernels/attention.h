#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cache/layout/page_run.h"

namespace strata {

// What one layer's attention needs to know of the model.
struct AttentionShape {
  int32_t query_heads = 0;
  int32_t kv_heads =
      0;  // divides query_heads; query head h reads KV head h / (query_heads / kv_heads)
  int32_t head_dim = 0;
};

// One sequence's part of a step: `rows` consecutive queries over all of its runs.
struct AttentionSequence {
  int32_t first_row = 0;  // row of its first query in q and in the states
  int32_t rows = 0;       // queries, at consecutive positions
  int32_t first_position =
      0;  // position of the first one; the query at position p sees tokens 0..p
  absl::Span<const PageRun> runs;  // in position order; what they hold past a query is masked
};

// Partial softmax states, one a (row, query head): the running maximum m of the scores in natural
// units (log base e, A2), the sum l of exp(score - m), and the unnormalized output o. The empty
// state is m = -inf, l = 0, o = 0 and is an exact identity of Merge (A1).
struct PartialStates {
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  std::vector<float> o;  // [rows][heads][head_dim]
  std::vector<float> m;  // [rows][heads]
  std::vector<float> l;  // [rows][heads]

  // Sets every state to empty; grows the buffers but never shrinks them.
  void Reset(int32_t row_count, int32_t head_count, int32_t dim);
};

// Who attends to the pages that a device with memory of its own finds in the host's, and how fast
// either did so when it was measured: tokens of warm pages a second, of one layer, for one decoding
// sequence. 0 where it was not measured, because the choice was given.
struct WarmAttentionFacts {
  bool on_host = false;
  size_t gather_bytes = 0;  // device memory for gathering pages that the device attends to
  double device_tokens_per_s = 0;
  double host_tokens_per_s = 0;
};

// Attention over pages, each in its own bits. Stateless but for scratch: one call at a time. q, out
// and the pages' bytes are read and written by the device (device_memory.h); sequences, runs and
// page views lie on the host and may change when a call returns.
//
// A2: m is in natural-log units. A3: attention over any split of the runs, merged, equals attention
// over their union within the bound stated in tests/kernels. A4: tokens past a run's `tokens`,
// after the query's position, or in a page's skip mask never reach the result. A row's result has
// the same bits whatever the number of rows, of other sequences and of threads.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  // Takes the scratch that calls of up to `rows` queries need, where a backend keeps any: memory is
  // taken at start-up. ResourceExhausted when it cannot be had.
  virtual absl::Status Reserve(const AttentionShape& shape, int32_t rows) {
    return absl::OkStatus();
  }

  // Folds the attention of every sequence over its runs into `states` (Reset by the caller).
  // q: [rows][query_heads][head_dim] in the stored basis, already scaled by 1/sqrt(head_dim).
  // Engine thread. Blocks until done.
  virtual void Attend(const AttentionShape& shape, const float* q,
                      absl::Span<const AttentionSequence> sequences, PartialStates* states) = 0;

  // Attention over nothing but these runs, finished: out[row][query_heads][head_dim] = o / l for
  // rows [0, rows), zeros where a query sees no token. May only enqueue (DeviceMemory).
  virtual void AttendAll(const AttentionShape& shape, int32_t rows, const float* q,
                         absl::Span<const AttentionSequence> sequences, float* out);

  // Absent where all memory is one. Settled by Reserve; any thread after it.
  virtual std::optional<WarmAttentionFacts> warm_attention() const { return std::nullopt; }

 private:
  PartialStates states_;  // of AttendAll
};

// Folds `other` into `states`, row by row and head by head; both have the same shape.
void MergeStates(const PartialStates& other, PartialStates* states);

// out[rows][heads][head_dim] = o / l; a state that saw no token gives zeros.
void FinishStates(const PartialStates& states, float* out);

}  // namespace strata
