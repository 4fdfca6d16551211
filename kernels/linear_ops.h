#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/layout/page_format.h"
#include "kernels/linear_types.h"

namespace strata {

// The most in_features, and the most out_features over all sources, that Prepare takes: sizes in
// bytes then fit in 64 bits whatever a model file claims.
inline constexpr int32_t kMaxFeatures = 1 << 24;

// What every backend's Prepare demands of its sources: at least one, known types, whole blocks,
// positive sizes within kMaxFeatures, one in_features for all. InvalidArgument naming the value and
// the limit.
absl::Status ValidateSources(absl::Span<const WeightSource> sources);

// A matrix prepared for one backend; the source is no longer needed. Opaque, immutable.
class WeightMatrix {
 public:
  virtual ~WeightMatrix() = default;
  virtual int32_t out_features() const = 0;
  virtual int32_t in_features() const = 0;
  virtual size_t bytes() const = 0;  // memory it occupies
};

// The dense arithmetic of a forward pass. Activations are row-major float matrices. They and norm
// weights, biases, scales, frequencies and pages are read and written by the device
// (device_memory.h); ids, rows, positions and targets are host arrays that may change when a call
// returns. Calls run in order, one at a time (scratch inside), and may only enqueue. A row's result
// has the same bits whatever the number of rows and threads.
class LinearOps {
 public:
  virtual ~LinearOps() = default;

  // Stacks the sources (same in_features, any types) along out_features into one matrix, so that
  // Q, K and V, or gate and up, are one product. InvalidArgument for a shape the type cannot have.
  virtual absl::StatusOr<std::unique_ptr<WeightMatrix>> Prepare(
      absl::Span<const WeightSource> sources) = 0;

  // Takes the scratch that calls of up to `rows` rows and `in_features` inputs need, where a
  // backend keeps any, and lets go of what only Prepare needs. ResourceExhausted when it cannot be
  // had.
  virtual absl::Status Reserve(int32_t rows, int32_t in_features) { return absl::OkStatus(); }

  // y[rows][out] = x[rows][in] W^T (+ bias[out] unless null); with `accumulate`, y += that.
  virtual void Matmul(const WeightMatrix& w, const float* x, int32_t rows, const float* bias,
                      bool accumulate, float* y) = 0;

  // out[i] = row ids[i] of the matrix, dequantized. CHECKs the range of ids.
  virtual void EmbedRows(const WeightMatrix& w, absl::Span<const int32_t> ids, float* out) = 0;

  // y[i] = x[rows[i]], rows of `width` floats. x and y do not overlap. CHECKs that rows are not
  // negative.
  virtual void GatherRows(const float* x, absl::Span<const int32_t> rows, int32_t width,
                          float* y) = 0;

  // y = x * rsqrt(mean(x^2) + epsilon) * weight, row by row; y may be x.
  virtual void RmsNorm(const float* x, const float* weight, int32_t rows, int32_t width,
                       float epsilon, float* y) = 0;

  // gate_up: [rows][2 width], gate first. y[rows][width] = silu(gate) * up.
  virtual void SwiGlu(const float* gate_up, int32_t rows, int32_t width, float* y) = 0;

  // Norms (where given), rotates by position, changes basis, and appends K and V to their pages.
  virtual void RopeAppend(const RopeAppendArgs& args) = 0;

  // o = H^T o, head by head, in place: leaves the stored basis of V. o: [rows][heads][head_dim].
  virtual void UnrotateHeads(int32_t rows, int32_t heads, int32_t head_dim, float* o) = 0;
};

}  // namespace strata
