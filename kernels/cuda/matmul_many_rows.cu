// Products of many rows: prefill, which waits for the tensor cores.

#include "kernels/cuda/matmul_common.cuh"

namespace strata::cuda {
namespace {

constexpr int32_t kRowTile = 32;    // rows of activations of a block
constexpr int32_t kManyWarps = 4;   // of a block
constexpr int32_t kManyStages = 3;  // of activations on their way to shared memory

// 32 rows of a panel in shared memory, one unit: [h][hi, lo][row][64 bytes], free of bank
// conflicts.
struct ManyRowsX {
  const unsigned char* stage;
  const float* sums;  // of the unit's first columns and the block's first row
  int32_t groups;
  int32_t rows_left;  // from the block's first row on, at least 1
  int32_t lane;

  GPU_DEVICE ActivationPair Pair(int32_t h, int32_t nt) const {
    const int32_t row = 8 * nt + lane / 4;
    const auto* hi =
        reinterpret_cast<const uint4*>(stage + (2 * h * kRowTile + row) * 64) + lane % 4;
    return {hi[0], hi[kRowTile * 4]};
  }
  GPU_DEVICE float2 Sums(int32_t h, int32_t nt) const {
    const int32_t row = 8 * nt + lane % 4 * 2, last = rows_left - 1;
    return make_float2(__ldg(sums + int64_t{1} * min(row, last) * groups + h),
                       __ldg(sums + int64_t{1} * min(row + 1, last) * groups + h));
  }
};

constexpr int32_t kStageBytes = 256 * kRowTile;

// Starts the copy of one unit of the block's rows; rows past the last are copies of it.
GPU_DEVICE void StageUnit(const std::byte* panel, int32_t groups, int32_t rows_left, int32_t unit,
                          unsigned char* stage) {
#pragma unroll
  for (int32_t i = 0; i < kRowTile * 16 / (kManyWarps * 32); ++i) {
    const int32_t chunk = i * kManyWarps * 32 + threadIdx.x;
    const int32_t row = chunk / 16, part = chunk % 16 / 4, t = chunk % 4;
    const std::byte* from = panel + int64_t{128} * min(row, rows_left - 1) * groups +
                            int64_t{256} * unit + 16 * (chunk % 16);
    gpu::CpAsync16(stage + (part * kRowTile + row) * 64 + 16 * t, from);
  }
}

// Tiles of weights that a warp of ManyRowsKernel holds: more reuse of what it reads from shared
// memory, as far as registers go.
template <WeightType kType>
constexpr int32_t kWarpTiles = FormatOf(kType).bits == 32 ? 1 : 2;

// acc: of the slice at hand. total: of the slices before it.
template <int kMt, int kNt>
GPU_DEVICE void EndSlice(bool first, float (&acc)[kMt][kNt][4], float (&total)[kMt][kNt][4]) {
#pragma unroll
  for (int32_t i = 0; i < kMt * kNt * 4; ++i) {
    float& sum = total[i / (kNt * 4)][i / 4 % kNt][i % 4];
    float& slice = acc[i / (kNt * 4)][i / 4 % kNt][i % 4];
    sum = first ? slice : __fadd_rn(sum, slice);
    slice = 0;
  }
}

// Grid: x over the tiles in kManyWarps * kWarpTiles, y over the rows in kRowTile.
template <WeightType kType>
__global__ void __launch_bounds__(kManyWarps * 32)
    ManyRowsKernel(const __grid_constant__ MatmulParams params) {
  constexpr int32_t kMt = kWarpTiles<kType>, kNt = kRowTile / 8;
  GPU_SHARED_ALIGNED(16, unsigned char, stages, [kManyStages][kStageBytes]);
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t first_row = blockIdx.y * kRowTile, rows_left = params.output.rows - first_row;
  const int32_t first_tile = (blockIdx.x * kManyWarps + warp) * kMt;
  const std::byte* panel = params.panel + int64_t{128} * first_row * params.groups;
  const float* sums = params.sums + int64_t{1} * first_row * params.groups;

  const std::byte* weights[kMt];
  float row_scale[kMt][2];
#pragma unroll
  for (int32_t mt = 0; mt < kMt; ++mt) {
    const int32_t tile =
        min(first_tile + mt, params.tiles - 1);  // results past the end are dropped
    weights[mt] = params.weights + tile * params.tile_bytes;
    LoadRowScales(params.output, tile, lane, row_scale[mt]);
  }
#pragma unroll
  for (int32_t s = 0; s < kManyStages - 1; ++s) {
    if (s < params.units) StageUnit(panel, params.groups, rows_left, s, stages[s]);
    gpu::CpAsyncCommit();
  }
  float acc[kMt][kNt][4] = {}, total[kMt][kNt][4] = {};
  const int32_t slice_units = SliceUnits(params.units);
  for (int32_t u = 0; u < params.units; ++u) {
    Unit<kType> units[kMt];
#pragma unroll
    for (int32_t mt = 0; mt < kMt; ++mt) LoadUnit(weights[mt], u, lane, &units[mt]);
    gpu::CpAsyncWait<kManyStages - 2>();
    __syncthreads();  // all have this unit, and all are done with the one before
    const int32_t next = u + kManyStages - 1;
    if (next < params.units) {
      StageUnit(panel, params.groups, rows_left, next, stages[next % kManyStages]);
    }
    gpu::CpAsyncCommit();
    const ManyRowsX x = {stages[u % kManyStages], sums + 2 * u, params.groups, rows_left, lane};
#pragma unroll
    for (int32_t mt = 0; mt < kMt; ++mt) {
      MultiplyUnit<kType, kNt>(units[mt], row_scale[mt], x, acc[mt]);
    }
    if ((u + 1) % slice_units == 0 || u + 1 == params.units) {
      EndSlice<kMt, kNt>(u < slice_units, acc, total);
    }
  }
  gpu::CpAsyncWait<0>();
#pragma unroll
  for (int32_t mt = 0; mt < kMt; ++mt) {
#pragma unroll
    for (int32_t nt = 0; nt < kNt; ++nt) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        params.output.Store(first_row + 8 * nt + lane % 4 * 2 + i % 2,
                            kTileRows * (first_tile + mt) + lane / 4 + i / 2 * 8, total[mt][nt][i]);
      }
    }
  }
}

}  // namespace

cudaError_t LaunchManyRows(WeightType type, const MatmulParams& params, cudaStream_t stream) {
  const int64_t row_tiles = (int64_t{params.output.rows} + kRowTile - 1) / kRowTile;
  if (row_tiles > 65535) return cudaErrorInvalidValue;  // blocks of a grid's y
  return ForWeightType(type, [&]<WeightType kType>() {
    const int32_t block_tiles = kManyWarps * kWarpTiles<kType>;
    const dim3 grid(static_cast<unsigned>((params.tiles + block_tiles - 1) / block_tiles),
                    static_cast<unsigned>(row_tiles));
    return gpu::Launch(ManyRowsKernel<kType>, grid, dim3(kManyWarps * 32), 0, stream, params);
  });
}

}  // namespace strata::cuda
