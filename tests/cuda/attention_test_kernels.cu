#include "kernels/cuda/attention_decode.cuh"
#include "tests/cuda/attention_test_kernels_launch.h"

namespace strata::cuda {
namespace {

constexpr int kProbeStages = 2;
constexpr int kProbeLineGroups = 4;  // head dims up to 256

template <bool kI4>
GPU_DEVICE void Probe(const uint8_t* chunk, const DecodeQueries& queries,
                      const AttentionGeometry& geometry, int8_t* codes, int32_t* dots) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  FoldedQueries<1, kProbeLineGroups> folded;
  FoldQueries<kI4>(chunk + 32 * geometry.dim, queries.codes(), geometry, &folded);
  for (int j = 0; j < kProbeLineGroups; ++j) {
    const int line = 4 * j + lane % 4;
    if (line >= geometry.lines) continue;
    for (int i = 0; i < 16; ++i) {
      codes[lane / 4 * geometry.dim + 16 * line + i] =
          static_cast<int8_t>(folded.b[0][j][i / 4] >> (8 * (i % 4)));
    }
  }
  for (int tile = 0; tile < 4; ++tile) {
    int32_t part[1][4] = {};
    CodeDots<kI4>(chunk, tile, geometry, folded, part);
    for (int i = 0; i < 4; ++i) {
      const int query = lane % 4 * 2 + i % 2;
      dots[query * kBlockTokens + 16 * tile + lane / 4 + 8 * (i / 2)] = part[0][i];
    }
  }
}

__global__ void ProbeKernel(const __grid_constant__ AttentionLaunch launch,
                            const __grid_constant__ AttentionGeometry geometry, int8_t* codes,
                            int32_t* dots) {
  GPU_DYN_SHARED(uint8_t, shared);
  const AttentionWork work = launch.work[0];
  DecodeQueries queries(geometry, shared);
  PageStream<kProbeStages> stream(launch, geometry, work, 0, work.first_position, shared);
  queries.Load(launch, work, 0);
  if (launch.splits[work.first_split].count[threadIdx.x / 32] == 0) return;
  const PageInfo info = stream.NextPage();
  const uint8_t* chunk = stream.NextChunk();
  if (info.k == AttentionRead::kI4) {
    Probe<true>(chunk, queries, geometry, codes, dots);
  } else {
    Probe<false>(chunk, queries, geometry, codes, dots);
  }
  stream.NextChunk();  // V, which is on its way
}

}  // namespace

cudaError_t LaunchCodeScores(const AttentionLaunch& launch, int8_t* codes, int32_t* dots) {
  const AttentionGeometry geometry =
      MakeDecodeGeometry(launch.head_dim, launch.query_heads / launch.kv_heads, kProbeStages);
  const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(&ProbeKernel),
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(geometry.shared_bytes));
  if (error != cudaSuccess) return error;
  return gpu::Launch(ProbeKernel, dim3(1), dim3(32 * kAttentionShares), geometry.shared_bytes,
                     nullptr, launch, geometry, codes, dots);
}

}  // namespace strata::cuda
