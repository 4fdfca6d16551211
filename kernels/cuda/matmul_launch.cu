#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/matmul_prepare.cuh"
#include "kernels/cuda/weights_checks.h"

namespace strata::cuda {
namespace {

// Many rows are worth their kernel where it can fill a large GPU: its blocks have 128 rows of
// weights, 32 of activations and all columns. Else blocks of 16 by 8 finish sooner, though weights
// come from L2 once more for every eight rows.
bool UseFewRows(const MatmulArgs& args, int32_t tiles) {
  if (args.kernel != MatmulKernel::kAuto) return args.kernel == MatmulKernel::kFewRows;
  const int64_t many_blocks = int64_t{(tiles + 7) / 8} * ((args.rows + 31) / 32);
  return args.rows <= kFewRows || (args.rows <= 64 && many_blocks < 128);
}

}  // namespace

size_t ActivationPanelBytes(int32_t rows, int32_t in_features) {
  return static_cast<size_t>(PanelShape(rows, in_features).Bytes());
}

cudaError_t LaunchPrepareActivations(const float* x, int32_t rows, int32_t in_features,
                                     std::byte* panel, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (rows < 0 || in_features <= 0 || in_features > kPackedFeaturesMax || x == nullptr ||
      !Aligned256(panel)) {
    return cudaErrorInvalidValue;
  }
  return gpu::Launch(PrepareActivationsKernel, dim3(static_cast<unsigned>(rows)),
                     dim3(kPrepareThreads), 0, stream, x, in_features,
                     PanelShape(rows, in_features), panel);
}

cudaError_t LaunchMatmul(const MatmulArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const PackedWeights& w = args.weights;
  if (args.rows < 0 || !ValidPacked(w) || !Aligned256(args.panel) || args.y == nullptr ||
      args.y_stride < w.out_features) {
    return cudaErrorInvalidValue;
  }
  const PackedShape shape(w.type, w.out_features, w.in_features);
  const PanelShape panel(args.rows, w.in_features);
  MatmulParams params;
  params.weights = w.data;
  params.tile_bytes = shape.tile_bytes;
  params.tiles = shape.tiles;
  params.units = shape.units;
  params.panel = args.panel;
  params.sums = reinterpret_cast<const float*>(args.panel + panel.Sums());
  params.groups = panel.groups;
  params.output = {
      reinterpret_cast<const float*>(args.panel + panel.Inverses()),
      shape.format.scaling == Scaling::kRow
          ? reinterpret_cast<const float*>(w.data + shape.RowScales())
          : nullptr,
      args.bias,
      args.accumulate,
      args.y,
      args.y_stride,
      args.rows,
      w.out_features,
  };
  return UseFewRows(args, shape.tiles) ? LaunchFewRows(w.type, params, stream)
                                       : LaunchManyRows(w.type, params, stream);
}

}  // namespace strata::cuda
