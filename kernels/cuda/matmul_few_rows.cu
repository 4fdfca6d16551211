// Products of few rows: decoding, which waits for weights.

#include "kernels/cuda/matmul_common.cuh"

namespace strata::cuda {
namespace {

// Eight rows of a panel, read where they lie. Rows past the last are the last again: their results
// are dropped, and no lane goes another way than its warp.
struct FewRowsX {
  const std::byte* line;   // of this lane's row, the unit's first columns
  const float* first_sum;  // of its rows 2 t and 2 t + 1 there
  const float* second_sum;
  int32_t t;

  GPU_DEVICE ActivationPair Pair(int32_t h, int32_t) const {
    const auto* quads = reinterpret_cast<const uint4*>(line + 128 * h) + t;
    return {__ldg(quads), __ldg(quads + 4)};
  }
  GPU_DEVICE float2 Sums(int32_t h, int32_t) const {
    return make_float2(__ldg(first_sum + h), __ldg(second_sum + h));
  }
};

// Units on their way while one is multiplied: more bytes in flight where a unit is small.
template <WeightType kType>
constexpr int32_t kDepth = FormatOf(kType).bits < 16    ? 4
                           : FormatOf(kType).bits == 16 ? 2
                                                        : 1;

// Grid: tiles times groups of eight rows, the groups of a tile together. A warp a slice.
template <WeightType kType>
__global__ void __launch_bounds__(kSlicesMax * 32, 2)
    FewRowsKernel(const __grid_constant__ MatmulParams params, int32_t row_groups) {
  constexpr int32_t kInFlight = kDepth<kType>;
  GPU_SHARED(float, partial, [kSlicesMax][kFewRows][kTileRows]);
  const int32_t slice = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t tile = blockIdx.x / row_groups, first_row = blockIdx.x % row_groups * kFewRows;
  const int32_t first = slice * SliceUnits(params.units);
  const int32_t last = min(first + SliceUnits(params.units), params.units);
  const std::byte* weights = params.weights + tile * params.tile_bytes;
  float row_scale[2];
  LoadRowScales(params.output, tile, lane, row_scale);

  const int32_t g = lane / 4, t = lane % 4, last_row = params.output.rows - 1;
  const auto row_of = [&](int32_t i) {
    return int64_t{1} * min(first_row + i, last_row) * params.groups;
  };
  const std::byte* line = params.panel + 128 * row_of(g);
  const float* first_sum = params.sums + row_of(2 * t);
  const float* second_sum = params.sums + row_of(2 * t + 1);
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
      const FewRowsX x = {line + int64_t{256} * index, first_sum + 2 * index,
                          second_sum + 2 * index, t};
      MultiplyUnit<kType, 1>(units[i], row_scale, x, acc);
      if (index + kInFlight < last) LoadUnit(weights, index + kInFlight, lane, &units[i]);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    partial[slice][2 * t + i % 2][g + i / 2 * 8] = acc[0][i];
  }
  __syncthreads();
  const int32_t slices = blockDim.x / 32;
  for (int32_t i = threadIdx.x; i < kFewRows * kTileRows; i += blockDim.x) {
    const int32_t row = i / kTileRows, o = i % kTileRows;
    float sum = partial[0][row][o];
    for (int32_t s = 1; s < slices; ++s) sum = __fadd_rn(sum, partial[s][row][o]);
    params.output.Store(first_row + row, kTileRows * tile + o, sum);
  }
}

}  // namespace

cudaError_t LaunchFewRows(WeightType type, const MatmulParams& params, cudaStream_t stream) {
  const int32_t slice_units = SliceUnits(params.units);
  const int32_t slices = (params.units + slice_units - 1) / slice_units;
  const int32_t row_groups = (params.output.rows + kFewRows - 1) / kFewRows;
  const int64_t blocks = int64_t{params.tiles} * row_groups;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  return ForWeightType(type, [&]<WeightType kType>() {
    return gpu::Launch(FewRowsKernel<kType>, dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(32 * slices)), 0, stream, params, row_groups);
  });
}

}  // namespace strata::cuda
