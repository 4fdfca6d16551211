#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/linear_types.h"

// The small kernels of a forward pass. Every call is asynchronous on `stream`; all pointers are
// device memory unless said otherwise; activations are row-major float matrices. A row's result has
// the same bits whatever the number of rows. Zero rows are no work. cudaErrorInvalidValue, with
// nothing launched, for sizes or pointers that a kernel does not take. Products: matmul_launch.h.
namespace strata::cuda {

inline constexpr int32_t kHeadDimMax = 256;

// y = x * rsqrt(mean(x^2) + epsilon) * weight, row by row; y may be x. width is at least 1.
cudaError_t LaunchRmsNorm(const float* x, const float* weight, int32_t rows, int32_t width,
                          float epsilon, float* y, cudaStream_t stream);

// gate_up: [rows][2 width], gate first. y[rows][width] = silu(gate) * up.
cudaError_t LaunchSwiGlu(const float* gate_up, int32_t rows, int32_t width, float* y,
                         cudaStream_t stream);

// The cosines and sines of a step's rows, once for all layers: angles[rows][rope.dim / 2][2] =
// magnitude * (cos, sin) of position * frequency, computed in double. rope.frequency is device
// memory. Angles below 2^24 radians in magnitude are right to float precision.
cudaError_t LaunchRopeAngles(const RopeParams& rope, const int32_t* positions, int32_t rows,
                             float* angles, cudaStream_t stream);

// LinearOps::RopeAppend in one kernel: norms, RoPE, change of basis, scale of q, and K and V into
// their F16 pages. Every pointer in `args` (targets and the pages they name too) is device memory,
// or mapped; `angles` is what LaunchRopeAngles made for the same rows, so args.positions and
// args.rope.frequency are not read. A target with a null page or a token outside 0..63 appends
// nothing. qkv and q may not overlap.
cudaError_t LaunchRopeAppend(const RopeAppendArgs& args, const float* angles, cudaStream_t stream);

// o = H^T o, head by head, in place. o: [rows][heads][head_dim].
cudaError_t LaunchUnrotateHeads(int32_t rows, int32_t heads, int32_t head_dim, float* o,
                                cudaStream_t stream);

// to[i] = from[index[i]], rows of `width` floats; out of place (the rows of a step whose logits are
// wanted). The indices are trusted.
cudaError_t LaunchGatherRows(const float* from, const int32_t* index, int32_t count, int32_t width,
                             float* to, cudaStream_t stream);

// y[rows][width] = x (+ bias[width] unless null), or y += that with `accumulate`; y may be x. For a
// product whose library adds neither.
cudaError_t LaunchAddRows(const float* x, const float* bias, int32_t rows, int32_t width,
                          bool accumulate, float* y, cudaStream_t stream);

// Rounds to nearest; for a library that multiplies 16-bit activations.
cudaError_t LaunchToF16(const float* x, int64_t count, uint16_t* y, cudaStream_t stream);
cudaError_t LaunchToBF16(const float* x, int64_t count, uint16_t* y, cudaStream_t stream);

}  // namespace strata::cuda
