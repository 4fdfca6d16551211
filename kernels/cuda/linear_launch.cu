#include "cache/layout/geometry.h"
#include "kernels/cuda/linear_kernels.cuh"
#include "kernels/cuda/linear_launch.h"
#include "kernels/cuda/rope_kernels.cuh"

namespace strata::cuda {
namespace {

// Rows are blocks of a grid's y where a row has several blocks.
constexpr int32_t kGridRowsMax = 65535;

bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

unsigned Blocks(int64_t count, int64_t block) {
  return static_cast<unsigned>((count + block - 1) / block);
}

// The grid of a kernel with a thread for each four elements of a row; empty when it is too large.
dim3 QuadGrid(int32_t rows, int32_t width) {
  return dim3(Blocks(width, 4 * kElementThreads), static_cast<unsigned>(rows));
}

bool ValidMatrix(int32_t rows, int32_t width) {
  return rows >= 0 && rows <= kGridRowsMax && width > 0 && width <= 1 << 28;
}

cudaError_t LaunchNarrow(const float* x, int64_t count, bool bf16, uint16_t* y,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (count < 0 || count > int64_t{kElementThreads} * 0x7fffffff || x == nullptr || y == nullptr) {
    return cudaErrorInvalidValue;
  }
  return gpu::Launch(NarrowKernel, dim3(Blocks(count, kElementThreads)), dim3(kElementThreads), 0,
                     stream, x, count, bf16, y);
}

bool ValidRope(const RopeParams& rope, int32_t head_dim) {
  return rope.dim >= 0 && rope.dim <= head_dim && rope.dim % 2 == 0;
}

bool ValidAppend(const RopeAppendArgs& args, const float* angles) {
  return args.rows <= kGridRowsMax && KvGeometry{1, args.kv_heads, args.head_dim}.Valid() &&
         args.query_heads > 0 && args.query_heads <= 1 << 16 && args.kv_heads <= 1 << 16 &&
         args.query_heads % args.kv_heads == 0 && ValidRope(args.rope, args.head_dim) &&
         args.qkv != nullptr && args.q != nullptr && args.targets != nullptr &&
         (args.rope.dim == 0 || angles != nullptr) && reinterpret_cast<uintptr_t>(angles) % 8 == 0;
}

}  // namespace

cudaError_t LaunchRmsNorm(const float* x, const float* weight, int32_t rows, int32_t width,
                          float epsilon, float* y, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (rows < 0 || width <= 0 || x == nullptr || weight == nullptr || y == nullptr) {
    return cudaErrorInvalidValue;
  }
  const bool wide = width % 4 == 0 && Aligned16(x) && Aligned16(weight) && Aligned16(y);
  return gpu::Launch(RmsNormKernel, dim3(static_cast<unsigned>(rows)), dim3(kRowThreads), 0, stream,
                     x, weight, width, epsilon, wide, y);
}

cudaError_t LaunchSwiGlu(const float* gate_up, int32_t rows, int32_t width, float* y,
                         cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (!ValidMatrix(rows, width) || gate_up == nullptr || y == nullptr) return cudaErrorInvalidValue;
  const bool wide = width % 4 == 0 && Aligned16(gate_up) && Aligned16(y);
  return gpu::Launch(SwiGluKernel, QuadGrid(rows, width), dim3(kElementThreads), 0, stream, gate_up,
                     width, wide, y);
}

cudaError_t LaunchRopeAngles(const RopeParams& rope, const int32_t* positions, int32_t rows,
                             float* angles, cudaStream_t stream) {
  const int32_t pairs = rope.dim / 2;
  if (rows == 0 || pairs == 0) return cudaSuccess;
  if (rows < 0 || !ValidRope(rope, kHeadDimMax) || rope.frequency == nullptr ||
      positions == nullptr || angles == nullptr) {
    return cudaErrorInvalidValue;
  }
  const int64_t count = int64_t{1} * rows * pairs;
  return gpu::Launch(RopeAnglesKernel, dim3(Blocks(count, kElementThreads)), dim3(kElementThreads),
                     0, stream, positions, rope.frequency, pairs, count, rope.magnitude, angles);
}

cudaError_t LaunchRopeAppend(const RopeAppendArgs& args, const float* angles, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.rows < 0 || !ValidAppend(args, angles)) return cudaErrorInvalidValue;
  const dim3 grid(Blocks(args.query_heads + 2 * args.kv_heads, kHeadWarps),
                  static_cast<unsigned>(args.rows));
  return gpu::Launch(RopeAppendKernel, grid, dim3(kHeadWarps * 32), 0, stream, args, angles);
}

cudaError_t LaunchUnrotateHeads(int32_t rows, int32_t heads, int32_t head_dim, float* o,
                                cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (rows < 0 || heads > 1 << 16 || !KvGeometry{1, heads, head_dim}.Valid() || o == nullptr) {
    return cudaErrorInvalidValue;
  }
  const int64_t count = int64_t{1} * rows * heads;
  if (count > int64_t{kHeadWarps} * 0x7fffffff) return cudaErrorInvalidValue;
  return gpu::Launch(UnrotateHeadsKernel, dim3(Blocks(count, kHeadWarps)), dim3(kHeadWarps * 32), 0,
                     stream, count, head_dim, o);
}

cudaError_t LaunchGatherRows(const float* from, const int32_t* index, int32_t count, int32_t width,
                             float* to, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (!ValidMatrix(count, width) || from == nullptr || index == nullptr || to == nullptr) {
    return cudaErrorInvalidValue;
  }
  const bool wide = width % 4 == 0 && Aligned16(from) && Aligned16(to);
  return gpu::Launch(GatherRowsKernel, QuadGrid(count, width), dim3(kElementThreads), 0, stream,
                     from, index, width, wide, to);
}

cudaError_t LaunchAddRows(const float* x, const float* bias, int32_t rows, int32_t width,
                          bool accumulate, float* y, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (!ValidMatrix(rows, width) || x == nullptr || y == nullptr) return cudaErrorInvalidValue;
  const bool wide = width % 4 == 0 && Aligned16(x) && Aligned16(bias) && Aligned16(y);
  return gpu::Launch(AddRowsKernel, QuadGrid(rows, width), dim3(kElementThreads), 0, stream, x,
                     bias, width, accumulate, wide, y);
}

cudaError_t LaunchToF16(const float* x, int64_t count, uint16_t* y, cudaStream_t stream) {
  return LaunchNarrow(x, count, /*bf16=*/false, y, stream);
}

cudaError_t LaunchToBF16(const float* x, int64_t count, uint16_t* y, cudaStream_t stream) {
  return LaunchNarrow(x, count, /*bf16=*/true, y, stream);
}

}  // namespace strata::cuda
