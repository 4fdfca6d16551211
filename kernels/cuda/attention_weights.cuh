#pragma once

#include "kernels/cuda/attention_geometry.h"
#include "kernels/cuda/gpu_compat.cuh"

// A warp's scores of a page, which the softmax turns into weights. A lane has those of tokens g (x,
// y) and g + 8 (z, w) of a tile of 16, queries 2 t (x, z) and 2 t + 1 (y, w) of eight n, and reads
// what it wrote itself. Loops over tiles are unrolled by kTileUnroll.
namespace strata::cuda {

// In shared memory: registers are for more blocks.
template <int kQueryTiles>
class SharedWeights {
 public:
  static constexpr int kTileUnroll = 1;

  GPU_DEVICE SharedWeights(const AttentionGeometry& geometry, uint8_t* shared)
      : weights_(reinterpret_cast<float4*>(shared + geometry.weights) +
                 threadIdx.x / 32 * kQueryTiles * 128 + threadIdx.x % 32) {}

  GPU_DEVICE float4 Get(int tile, int n) const { return weights_[(tile * kQueryTiles + n) * 32]; }
  GPU_DEVICE void Set(int tile, int n, const float4& p) {
    weights_[(tile * kQueryTiles + n) * 32] = p;
  }

 private:
  float4* weights_;
};

// In registers: shared memory has enough to do.
template <int kQueryTiles>
class RegisterWeights {
 public:
  static constexpr int kTileUnroll = 4;  // an index must be known when this is compiled

  GPU_DEVICE RegisterWeights(const AttentionGeometry&, uint8_t*) {}

  GPU_DEVICE float4 Get(int tile, int n) const { return weights_[tile][n]; }
  GPU_DEVICE void Set(int tile, int n, const float4& p) { weights_[tile][n] = p; }

 private:
  float4 weights_[4][kQueryTiles];
};

}  // namespace strata::cuda
