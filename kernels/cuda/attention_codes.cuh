#pragma once

#include "kernels/cuda/attention_stream.cuh"

// I4 and I2 pages by m16n8k32 on the codes as they are stored: u8 codes times the int8 that a query
// (K) or the softmax weights (V) become once the page's parameters are folded into them. With codes
// c, parameters mn and s and the centre z = mn + 8 s:
//
//   x . value ~ sum_e x_e z_e - scale mean sum_e i_e + scale sum_e i_e c_e
//
// where int8 i_e rounds x_e s_e / (scale / unit), scale = unit max |x_e s_e| / 127; unit and mean
// are 1 and 7.5 for I4, 4 and 1.5 for I2. kernels/cpu/attention_codes-inl.h does the same: the int8
// queries and the integer dots of K are equal to its own, bit for bit, being made of single
// correctly rounded operations and exact sums.
//
// A plane's word is 16 reduction elements of one row, four of them a byte lane: (w >> 2 z) &
// 0x03030303. In an MMA of 32 elements a lane (g, t) has four elements of rows g and g + 8 in each
// half of the reduction. Which four is free as long as both operands agree, so lane t takes its
// words from line t of four lines, and z and z + 1 make the two halves: two MMAs use every bit of
// what was loaded once.
namespace strata::cuda {

// Below this the folded values are as good as zero, and its reciprocal is still a number.
inline constexpr float kFoldedMin = 0x1p-100f;

template <bool kI4>
struct CodeTraits {
  static constexpr float kUnit = kI4 ? 1.0f : 4.0f;
  static constexpr float kMean = kI4 ? 7.5f : 1.5f;
};

// x + kRoundMagic has the integer nearest to x (ties to even, |x| < 2^22) in its low bits, and
// kMagicBits + i, read as a float, is kRoundMagic + i: both conversions at the speed of additions,
// where the instructions for them run at a quarter of it.
inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 x 2^23
inline constexpr uint32_t kMagicBits = 0x4b400000u;

GPU_DEVICE uint32_t RoundedBits(float x) { return __float_as_uint(__fadd_rn(x, kRoundMagic)); }
// The dot product of an MMA that started from kMagicBits.
GPU_DEVICE float DotOf(int32_t bits) { return __fsub_rn(__int_as_float(bits), kRoundMagic); }

GPU_DEVICE float HalfBits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
// Eight halves in four words.
GPU_DEVICE void HalvesToFloats(const uint4& words, float* x) {
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = HalfBits(word[i] & 0xffffu);
    x[2 * i + 1] = HalfBits(word[i] >> 16);
  }
}

// The A registers of two MMAs (of z 0, 1 and of z 2, 3) from the words of rows g and g + 8.
template <bool kI4>
GPU_DEVICE void UnpackCodes(const uint32_t (&hi)[2], const uint32_t (&lo)[2], uint32_t (&a)[2][4]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if constexpr (kI4) {
      // Codes of z 0 and 2, and of z 1 and 3, as the nibbles of each byte.
      constexpr uint32_t kEven = 0x33333333u;
      constexpr uint32_t kNibble = 0x0f0f0f0fu;
      const uint32_t even = ((hi[row] << 2) & ~kEven) | (lo[row] & kEven);
      const uint32_t odd = (hi[row] & ~kEven) | ((lo[row] >> 2) & kEven);
      a[0][row] = even & kNibble;
      a[0][2 + row] = odd & kNibble;
      a[1][row] = (even >> 4) & kNibble;
      a[1][2 + row] = (odd >> 4) & kNibble;
    } else {
      constexpr uint32_t kBits = 0x03030303u;
      a[0][row] = hi[row] & kBits;
      a[0][2 + row] = (hi[row] >> 2) & kBits;
      a[1][row] = (hi[row] >> 4) & kBits;
      a[1][2 + row] = (hi[row] >> 6) & kBits;
    }
  }
}

// Loads a lane's words of `unit` and of the one two units on (rows g + 8), whose place differs in
// one bit whatever the swizzle.
template <bool kI4>
GPU_DEVICE void LoadCodes(const uint8_t* chunk, uint32_t unit, const Swizzle& swizzle, int dim,
                          uint32_t (&a)[2][4]) {
  const uint32_t at = 16 * Swizzled(swizzle, unit) + threadIdx.x / 4 % 4 * 4;
  const uint8_t* word = chunk + at;
  const uint8_t* other = chunk + (at ^ 32u);
  const uint32_t hi[2] = {*reinterpret_cast<const uint32_t*>(word),
                          *reinterpret_cast<const uint32_t*>(other)};
  uint32_t lo[2] = {0, 0};
  if constexpr (kI4) {
    lo[0] = *reinterpret_cast<const uint32_t*>(word + 16 * dim);
    lo[1] = *reinterpret_cast<const uint32_t*>(other + 16 * dim);
  }
  UnpackCodes<kI4>(hi, lo, a);
}

// One page's K parameters folded into the queries of a tile: B registers [n][line group][z], the
// int8 of query 8 n + g for channels 64 (line group) + 16 t + 4 z, and that query's scale and
// constant.
template <int kQueryTiles, int kLineGroups>
struct FoldedQueries {
  uint32_t b[kQueryTiles][kLineGroups][4];
  float scale[kQueryTiles];
  float constant[kQueryTiles];
};

// Half a line of a page's parameters, of eight channels.
struct HalfLine {
  float step[8];
  float center[8];
};
GPU_DEVICE HalfLine LoadHalfLine(const uint4& mn, const uint4& s) {
  HalfLine out;
  float low[8];
  HalvesToFloats(s, out.step);
  HalvesToFloats(mn, low);
#pragma unroll
  for (int i = 0; i < 8; ++i) out.center[i] = __fmaf_rn(out.step[i], 8.0f, low[i]);
  return out;
}

// Eight channels of a query, their products with the steps, and what is kept of them.
struct FoldSums {
  float centers = 0.0f;
  float largest = 0.0f;
};
GPU_DEVICE void MultiplyEight(const float4& x0, const float4& x1, const HalfLine& params,
                              float* product, FoldSums* sums) {
  const float x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    product[i] = __fmul_rn(x[i], params.step[i]);
    sums->centers = __fmaf_rn(x[i], params.center[i], sums->centers);
    sums->largest = fmaxf(sums->largest, fabsf(product[i]));
  }
}

// Which of four places the line of a query that is the first of its group has: line i is at i ^
// this, for query 8 n + g and channels from 4 z (attention_queries.cuh says why).
GPU_DEVICE int QuerySwizzle(int g, int z) { return ((g >> 1) & 1) | ((z & 1) << 1); }

// params: mn half[D], s half[D]. q: as QueryIndex has it.
template <bool kI4, int kQueryTiles, int kLineGroups>
GPU_DEVICE void FoldQueries(const uint8_t* params, const float4* q,
                            const AttentionGeometry& geometry,
                            FoldedQueries<kQueryTiles, kLineGroups>* folded) {
  const int lane = gpu::FreshLane();
  const int t = lane % 4;
  const int even = lane ^ QuerySwizzle(lane / 4, 0);
  const int odd = 32 + (lane ^ QuerySwizzle(lane / 4, 1));
  FoldSums all_sums[kQueryTiles];
  float products[kQueryTiles][kLineGroups][16];
#pragma unroll
  for (int j = 0; j < kLineGroups; ++j) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 16; ++i) products[n][j][i] = 0.0f;
    }
    const int line = 4 * j + t;
    if (line < geometry.lines) {
      const uint4* mn = reinterpret_cast<const uint4*>(params + 32 * line);
      const uint4* s = reinterpret_cast<const uint4*>(params + 2 * geometry.dim + 32 * line);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const HalfLine half = LoadHalfLine(mn[h], s[h]);
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
          const float4* x = q + (n * geometry.line_groups + j) * 128 + 64 * h;
          MultiplyEight(x[even], x[odd], half, &products[n][j][8 * h], &all_sums[n]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const FoldSums& sums = all_sums[n];
    const float(&product)[kLineGroups][16] = products[n];
    float top = fmaxf(sums.largest, __shfl_xor_sync(gpu::kAllLanes, sums.largest, 1));
    top = fmaxf(fmaxf(top, __shfl_xor_sync(gpu::kAllLanes, top, 2)), kFoldedMin);
    const float inverse = __fdiv_rn(127.0f, top);
    int32_t sum = 0;
#pragma unroll
    for (int j = 0; j < kLineGroups; ++j) {
#pragma unroll
      for (int z = 0; z < 4; ++z) {
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          bits[i] = RoundedBits(__fmul_rn(product[j][4 * z + i], inverse));
        }
        const uint32_t bytes = __byte_perm(__byte_perm(bits[0], bits[1], 0x0040),
                                           __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
        folded->b[n][j][z] = bytes;
        sum = gpu::Dp4aS8S8(bytes, 0x01010101u, sum);
      }
    }
    const float scale = __fmul_rn(top, CodeTraits<kI4>::kUnit / 127.0f);
    const float mean = __fmul_rn(scale, -CodeTraits<kI4>::kMean);
    float constant = __fmaf_rn(mean, static_cast<float>(sum), sums.centers);
    constant = __fadd_rn(constant, __shfl_xor_sync(gpu::kAllLanes, constant, 1));
    constant = __fadd_rn(constant, __shfl_xor_sync(gpu::kAllLanes, constant, 2));
    folded->scale[n] = scale;
    folded->constant[n] = constant;
  }
}

// dots[n][i] += the integer scores of tile `tile` of 16 tokens of a K chunk: rows are tokens,
// columns queries.
template <bool kI4, int kQueryTiles, int kLineGroups>
GPU_DEVICE void CodeDots(const uint8_t* chunk, int tile, const AttentionGeometry& geometry,
                         const FoldedQueries<kQueryTiles, kLineGroups>& folded,
                         int32_t (&dots)[kQueryTiles][4]) {
  const int lane = gpu::FreshLane();
#pragma unroll
  for (int j = 0; j < kLineGroups; ++j) {
    if (4 * j < geometry.lines) {
      // Lanes of lines that do not exist have zeros in B, and in A any codes that do.
      const int line = min(4 * j + lane % 4, geometry.lines - 1);
      const uint32_t unit = static_cast<uint32_t>((tile * geometry.lines + line) * 4 + lane / 16);
      uint32_t a[2][4];
      LoadCodes<kI4>(chunk, unit, geometry.k_codes, geometry.dim, a);
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        const uint32_t first[2] = {folded.b[n][j][0], folded.b[n][j][1]};
        const uint32_t second[2] = {folded.b[n][j][2], folded.b[n][j][3]};
        gpu::MmaM16N8K32U8S8(dots[n], a[0], first, dots[n]);
        gpu::MmaM16N8K32U8S8(dots[n], a[1], second, dots[n]);
      }
    }
  }
}

// One V group's parameters folded into the weights of a page's 64 tokens. Leaves the int8 in staged
// [query][kStagedStride], byte = token, and scale and constant of the lane's columns. mn, s:
// half[64].
template <bool kI4, int kQueryTiles, class Weights>
GPU_DEVICE void FoldWeights(const uint16_t* mn, const uint16_t* s, const Weights& weights,
                            uint8_t* staged, float (&scale)[kQueryTiles][2],
                            float (&constant)[kQueryTiles][2]) {
  const int lane = gpu::FreshLane();
  const int g = lane / 4;
  float step[4][2], center[4][2];
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int token = 16 * tile + 8 * h + g;
      step[tile][h] = HalfBits(s[token]);
      center[tile][h] = __fmaf_rn(step[tile][h], 8.0f, HalfBits(mn[token]));
    }
  }
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    float top[2] = {0.0f, 0.0f};
    float centers[2] = {0.0f, 0.0f};
    float product[4][4];
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const float4 p4 = weights.Get(tile, n);
      const float p[4] = {p4.x, p4.y, p4.z, p4.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        product[tile][i] = __fmul_rn(p[i], step[tile][i / 2]);
        top[i % 2] = fmaxf(top[i % 2], product[tile][i]);
        centers[i % 2] = __fmaf_rn(p[i], center[tile][i / 2], centers[i % 2]);
      }
    }
    float inverse[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      top[c] = fmaxf(gpu::ColumnMax(top[c]), kFoldedMin);
      inverse[c] = __fdividef(127.0f, top[c]);
      scale[n][c] = __fmul_rn(top[c], CodeTraits<kI4>::kUnit / 127.0f);
    }
    uint32_t sum[2] = {0, 0};  // of eight codes and as many kMagicBits
    uint8_t* row = staged + (8 * n + lane % 4 * 2) * kStagedStride + g;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t bits = RoundedBits(__fmul_rn(product[tile][i], inverse[i % 2]));
        sum[i % 2] += bits;
        row[i % 2 * kStagedStride + 16 * tile + 8 * (i / 2)] = static_cast<uint8_t>(bits);
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float mean = __fmul_rn(scale[n][c], -CodeTraits<kI4>::kMean);
      const float codes = static_cast<float>(static_cast<int32_t>(sum[c] - 8 * kMagicBits));
      constant[n][c] = gpu::ColumnSum(__fmaf_rn(mean, codes, centers[c]));
    }
  }
}

// o[mt][n] += the weights of a page's 64 tokens times its V chunk of codes.
template <bool kI4, int kChannelTiles, int kQueryTiles, class Weights>
GPU_DEVICE void CodeValues(const uint8_t* chunk, const Weights& weights, uint8_t* staged,
                           const AttentionGeometry& geometry,
                           float (&o)[kChannelTiles][kQueryTiles][4]) {
  const int lane = gpu::FreshLane();
  const int g = lane / 4;
  const uint16_t* params = reinterpret_cast<const uint16_t*>(chunk + 32 * geometry.dim);
#pragma unroll 1
  for (int group = 0; group < geometry.v_groups; ++group) {
    float scale[kQueryTiles][2], constant[kQueryTiles][2];
    FoldWeights<kI4, kQueryTiles>(params + kBlockTokens * group,
                                  params + kBlockTokens * (geometry.v_groups + group), weights,
                                  staged, scale, constant);
    __syncwarp();
    uint4 b[kQueryTiles];  // tokens 16 t + 4 z
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      b[n] = *reinterpret_cast<const uint4*>(staged + (8 * n + g) * kStagedStride + lane % 4 * 16);
    }
    __syncwarp();
#pragma unroll
    for (int mt = 0; mt < kChannelTiles; ++mt) {
      if (mt >= group * geometry.v_lines && mt < (group + 1) * geometry.v_lines) {
        const uint32_t unit =
            static_cast<uint32_t>((lane % 4 * geometry.lines + mt) * 4 + lane / 16);
        uint32_t a[2][4];
        LoadCodes<kI4>(chunk, unit, geometry.v_codes, geometry.dim, a);
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
          constexpr int32_t kZero = static_cast<int32_t>(kMagicBits);
          int32_t dots[4] = {kZero, kZero, kZero, kZero};
          const uint32_t first[2] = {b[n].x, b[n].y};
          const uint32_t second[2] = {b[n].z, b[n].w};
          gpu::MmaM16N8K32U8S8(dots, a[0], first, dots);
          gpu::MmaM16N8K32U8S8(dots, a[1], second, dots);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float part = __fmaf_rn(scale[n][i % 2], DotOf(dots[i]), constant[n][i % 2]);
            o[mt][n][i] = __fadd_rn(o[mt][n][i], part);
          }
        }
      }
    }
  }
}

}  // namespace strata::cuda
