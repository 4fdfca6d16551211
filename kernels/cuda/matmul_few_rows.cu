// Products of up to eight rows: decoding, which waits for weights.

#include "kernels/cuda/matmul_common.cuh"

namespace strata::cuda {
namespace {

// Up to eight rows of a panel, read where they lie; rows past the last are zero.
struct FewRowsX {
  const std::byte* line;  // of this lane's row, the unit's first columns
  const float* sums;      // of row 2 t there; the next row's are `groups` on
  int32_t groups;
  int32_t lane;
  int32_t rows;

  GPU_DEVICE ActivationPair Pair(int32_t h, int32_t) const {
    if (lane / 4 >= rows) return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    const auto* quads = reinterpret_cast<const uint4*>(line + 128 * h) + lane % 4;
    return {__ldg(quads), __ldg(quads + 4)};
  }
  GPU_DEVICE float2 Sums(int32_t h, int32_t) const {
    const int32_t row = lane % 4 * 2;
    return make_float2(row < rows ? __ldg(sums + h) : 0.0f,
                       row + 1 < rows ? __ldg(sums + groups + h) : 0.0f);
  }
};

// Units on their way while one is multiplied: more bytes in flight where a unit is small.
template <WeightType kType>
constexpr int32_t kDepth = FormatOf(kType).bits < 16    ? 4
                           : FormatOf(kType).bits == 16 ? 2
                                                        : 1;

// Grid: tiles. A warp a slice.
template <WeightType kType>
__global__ void __launch_bounds__(kSlicesMax * 32, 2)
    FewRowsKernel(const __grid_constant__ MatmulParams params) {
  constexpr int32_t kInFlight = kDepth<kType>;
  GPU_SHARED(float, partial, [kSlicesMax][kFewRows][kTileRows]);
  const int32_t slice = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x;
  const int32_t first = slice * SliceUnits(params.units);
  const int32_t last = min(first + SliceUnits(params.units), params.units);
  const std::byte* weights = params.weights + tile * params.tile_bytes;
  float row_scale[2];
  LoadRowScales(params.output, tile, lane, row_scale);

  const std::byte* line = params.panel + int64_t{128} * (lane / 4) * params.groups;
  const float* sums = params.sums + int64_t{2} * (lane % 4) * params.groups;
  float acc[1][4] = {{0, 0, 0, 0}};
  Unit<kType> units[kInFlight];
#pragma unroll
  for (int32_t i = 0; i < kInFlight; ++i) {
    if (first + i < last) LoadUnit(weights, first + i, lane, &units[i]);
  }
  for (int32_t u = first; u < last; u += kInFlight) {
#pragma unroll
    for (int32_t i = 0; i < kInFlight; ++i) {
      const int32_t index = u + i;
      if (index >= last) break;
      const FewRowsX x = {line + int64_t{256} * index, sums + 2 * index, params.groups, lane,
                          params.output.rows};
      MultiplyUnit<kType, 1>(units[i], row_scale, x, acc);
      if (index + kInFlight < last) LoadUnit(weights, index + kInFlight, lane, &units[i]);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    partial[slice][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = acc[0][i];
  }
  __syncthreads();
  const int32_t slices = blockDim.x / 32;
  for (int32_t i = threadIdx.x; i < kFewRows * kTileRows; i += blockDim.x) {
    const int32_t row = i / kTileRows, o = i % kTileRows;
    float sum = partial[0][row][o];
    for (int32_t s = 1; s < slices; ++s) sum = __fadd_rn(sum, partial[s][row][o]);
    params.output.Store(row, kTileRows * tile + o, sum);
  }
}

}  // namespace

cudaError_t LaunchFewRows(WeightType type, const MatmulParams& params, cudaStream_t stream) {
  const int32_t slice_units = SliceUnits(params.units);
  const int32_t slices = (params.units + slice_units - 1) / slice_units;
  return ForWeightType(type, [&]<WeightType kType>() {
    return gpu::Launch(FewRowsKernel<kType>, dim3(static_cast<unsigned>(params.tiles)),
                       dim3(static_cast<unsigned>(32 * slices)), 0, stream, params);
  });
}

}  // namespace strata::cuda
