#pragma once

// One unit of weights (16 rows, 64 columns) times up to NT * 8 rows of activations: what both
// kernels of matmul_kernels.cuh do, in one order.
//
// Weights are operand A, so that eight rows of activations, or one, fill operand B. Codes go in as
// whole numbers and their scales are applied to the float sums of 32 columns (16 for Q6_K): no
// weight is rounded. An activation is two halves, hi + lo, 22 bits together. The order of addition
// of an output: columns ascending by steps of 16, in a step lo before hi; a group's sum times its
// scale, then the minimum times the sum of the activations.

#include "kernels/cuda/weights_layout.cuh"

namespace strata::cuda {

// The words of parameters that a lane keeps a unit.
constexpr int32_t ParamWords(Scaling scaling) {
  return scaling == Scaling::kScale          ? 2
         : scaling == Scaling::kScaleMinimum ? 4
         : scaling == Scaling::kSuperMinimum ? 4
         : scaling == Scaling::kSuperScale   ? 5
                                             : 1;  // unused
}

// What a lane loads of a unit.
template <WeightType kType>
struct Unit {
  static constexpr PackedFormat kFormat = FormatOf(kType);
  static constexpr int32_t kQuads = kFormat.bits < 8 ? 1 : kFormat.bits / 4;
  static constexpr int32_t kUpper = kFormat.bits == 6 ? 2 : 1;
  uint4 quads[kQuads];
  uint32_t upper[kUpper];
  uint32_t params[ParamWords(kFormat.scaling)];

  GPU_DEVICE uint32_t Word(int32_t index) const {
    const uint4& q = quads[index / 4];
    return index % 4 == 0 ? q.x : index % 4 == 1 ? q.y : index % 4 == 2 ? q.z : q.w;
  }
};

// tile: the record stream of 16 rows.
template <WeightType kType>
GPU_DEVICE void LoadUnit(const std::byte* tile, int32_t index, int32_t lane, Unit<kType>* unit) {
  constexpr PackedFormat kFormat = Unit<kType>::kFormat;
  const int32_t within = index % kFormat.RecordUnits();
  const std::byte* record =
      tile + int64_t{1} * (index / kFormat.RecordUnits()) * kFormat.RecordBytes();
  const std::byte* codes = record + within * kFormat.UnitBytes();
#pragma unroll
  for (int32_t i = 0; i < Unit<kType>::kQuads; ++i) {
    unit->quads[i] = gpu::LoadNoAllocate16(codes + kLaneBytes * i + 16 * lane);
  }
  if constexpr (kFormat.bits == 5) {
    unit->upper[0] = __ldg(reinterpret_cast<const uint32_t*>(codes + kLaneBytes) + lane);
  }
  if constexpr (kFormat.bits == 6) {
    const uint2 pairs = __ldg(reinterpret_cast<const uint2*>(codes + kLaneBytes) + lane);
    unit->upper[0] = pairs.x;
    unit->upper[1] = pairs.y;
  }
  const std::byte* params = record + kFormat.ParamsOffset();
  const int32_t g = lane / 4;
  if constexpr (kFormat.scaling == Scaling::kScale) {
    unit->params[0] = __ldg(reinterpret_cast<const uint32_t*>(params) + g);
    unit->params[1] = __ldg(reinterpret_cast<const uint32_t*>(params) + 8 + g);
  }
  if constexpr (kFormat.scaling == Scaling::kScaleMinimum) {
    const uint2 first = __ldg(reinterpret_cast<const uint2*>(params) + g);
    const uint2 second = __ldg(reinterpret_cast<const uint2*>(params) + 8 + g);
    unit->params[0] = first.x;
    unit->params[1] = first.y;
    unit->params[2] = second.x;
    unit->params[3] = second.y;
  }
  if constexpr (kFormat.scaling == Scaling::kSuperMinimum) {
    const uint2 super = __ldg(reinterpret_cast<const uint2*>(params) + g);
    const auto* subs = reinterpret_cast<const uint32_t*>(params + 64) + 16 * within;
    unit->params[0] = super.x;
    unit->params[1] = super.y;
    unit->params[2] = __ldg(subs + g);
    unit->params[3] = __ldg(subs + 8 + g);
  }
  if constexpr (kFormat.scaling == Scaling::kSuperScale) {
    unit->params[0] = __ldg(reinterpret_cast<const uint32_t*>(params) + g);
    const auto* subs = reinterpret_cast<const uint16_t*>(params + 32) + 32 * within;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) unit->params[1 + i] = __ldg(subs + 8 * i + g);
  }
}

GPU_DEVICE float LowHalf(uint32_t word) { return gpu::HalfBitsToFloat(word & 0xffffu); }
GPU_DEVICE float HighHalf(uint32_t word) { return gpu::HalfBitsToFloat(word >> 16); }

// What the sums of a group of columns are multiplied by: of rows g and g + 8.
struct Factors {
  float scale[2];
  float minimum[2];  // to be added, times the sum of the activations
};

// Of half h of the unit; for kSuperScale of step 2 h + m.
template <WeightType kType>
GPU_DEVICE Factors FactorsOf(const Unit<kType>& unit, int32_t h, int32_t m) {
  constexpr Scaling kScaling = Unit<kType>::kFormat.scaling;
  Factors f = {{1, 1}, {0, 0}};
  if constexpr (kScaling == Scaling::kScale) {
    f.scale[0] = LowHalf(unit.params[h]);
    f.scale[1] = HighHalf(unit.params[h]);
  }
  if constexpr (kScaling == Scaling::kScaleMinimum) {
    f.scale[0] = LowHalf(unit.params[2 * h]);
    f.scale[1] = HighHalf(unit.params[2 * h]);
    f.minimum[0] = LowHalf(unit.params[2 * h + 1]);
    f.minimum[1] = HighHalf(unit.params[2 * h + 1]);
  }
  if constexpr (kScaling == Scaling::kSuperMinimum) {
    const uint32_t subs = unit.params[2 + h];
    f.scale[0] = __fmul_rn(LowHalf(unit.params[0]), static_cast<float>(subs & 255));
    f.scale[1] = __fmul_rn(HighHalf(unit.params[0]), static_cast<float>(subs >> 8 & 255));
    f.minimum[0] = -__fmul_rn(LowHalf(unit.params[1]), static_cast<float>(subs >> 16 & 255));
    f.minimum[1] = -__fmul_rn(HighHalf(unit.params[1]), static_cast<float>(subs >> 24));
  }
  if constexpr (kScaling == Scaling::kSuperScale) {
    const uint32_t subs = unit.params[1 + 2 * h + m];
    f.scale[0] =
        __fmul_rn(LowHalf(unit.params[0]), static_cast<float>(static_cast<int8_t>(subs & 255)));
    f.scale[1] =
        __fmul_rn(HighHalf(unit.params[0]), static_cast<float>(static_cast<int8_t>(subs >> 8)));
  }
  return f;
}

// Four registers of operand A at a step, from codes: whole numbers. A half whose bits are 0x6400
// plus a number below 1024 is 1024 plus that number.
template <WeightType kType>
GPU_DEVICE void ExpandCodes(const Unit<kType>& unit, int32_t step, uint32_t (&a)[4]) {
  constexpr PackedFormat kFormat = Unit<kType>::kFormat;
  constexpr uint32_t kBias = (0x6400u + kFormat.offset) * 0x00010001u;
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
    uint32_t code;
    if constexpr (kFormat.bits == 8) {
      const uint32_t word = unit.Word(4 * (step / 2) + step % 2 * 2 + j / 2);
      code = __byte_perm(word, 0x64646464u, j % 2 == 0 ? 0x4140u : 0x4342u);
    } else {
      code = (unit.Word(step) >> (4 * j) & 0x000f000fu) | 0x64006400u;
    }
    if constexpr (kFormat.bits == 5) {
      const int32_t at = 4 * step + j;
      const uint32_t bit = at < 4 ? unit.upper[0] << (4 - at) : unit.upper[0] >> (at - 4);
      code |= bit & 0x00100010u;
    }
    if constexpr (kFormat.bits == 6) {
      const int32_t at = 2 * (step % 2 * 4 + j);
      const uint32_t word = unit.upper[step / 2];
      code |= (at < 4 ? word << (4 - at) : word >> (at - 4)) & 0x00300030u;
    }
    a[j] = gpu::SubHalves(code, kBias);
  }
}

// Of plain weights, brought into the halves' range by their row's factor: `hi`, and for F32 what it
// leaves.
template <WeightType kType>
GPU_DEVICE void ExpandPlain(const Unit<kType>& unit, int32_t step, const float (&row_scale)[2],
                            uint32_t (&hi)[4], uint32_t (&lo)[4]) {
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
    if constexpr (kType == WeightType::kF16) {
      hi[j] = unit.Word(4 * step + j);
    } else if constexpr (kType == WeightType::kBF16) {
      const uint32_t word = unit.Word(4 * step + j);
      const float first = __fmul_rn(BF16ToFloat(word & 0xffffu), row_scale[j % 2]);
      const float second = __fmul_rn(BF16ToFloat(word >> 16), row_scale[j % 2]);
      hi[j] = gpu::FloatToHalfBits(first) | gpu::FloatToHalfBits(second) << 16;
    } else {
      hi[j] = lo[j] = 0;
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        const float x =
            __fmul_rn(__uint_as_float(unit.Word(8 * step + 2 * j + e)), row_scale[j % 2]);
        const uint32_t half = gpu::FloatToHalfBits(x);
        const float rest = __fsub_rn(x, gpu::HalfBitsToFloat(half));
        hi[j] |= half << (16 * e);
        lo[j] |= gpu::FloatToHalfBits(rest) << (16 * e);
      }
    }
  }
}

// Operand B of 32 columns: registers b0, b1 of both steps, of hi and lo.
struct ActivationPair {
  uint4 hi;
  uint4 lo;
};
GPU_DEVICE void StepOf(const uint4& quad, int32_t m, uint32_t (&b)[2]) {
  b[0] = m == 0 ? quad.x : quad.z;
  b[1] = m == 0 ? quad.y : quad.w;
}

// sums += A (lo + hi) at one step.
GPU_DEVICE void MultiplyStep(const uint32_t (&a)[4], const ActivationPair& x, int32_t m,
                             float (&sums)[4]) {
  uint32_t b[2];
  StepOf(x.lo, m, b);
  gpu::MmaM16N8K16(sums, a, b, sums);
  StepOf(x.hi, m, b);
  gpu::MmaM16N8K16(sums, a, b, sums);
}

// acc += factors * sums, for an accumulator of the tensor core: values 0, 1 are of row g, columns
// (rows of activations) 2 t and 2 t + 1; values 2, 3 of row g + 8.
GPU_DEVICE void Scale(const Factors& f, const float (&sums)[4], float (&acc)[4]) {
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) acc[i] = __fmaf_rn(f.scale[i / 2], sums[i], acc[i]);
}

// acc[nt] += unit * activations. X gives Pair(h, nt), an ActivationPair, and Sums(h, nt), a float2:
// the sums over the 32 columns of half h of this lane's two rows.
template <WeightType kType, int kNt, class X>
GPU_DEVICE void MultiplyUnit(const Unit<kType>& unit, const float (&row_scale)[2], const X& x,
                             float (&acc)[kNt][4]) {
  constexpr PackedFormat kFormat = Unit<kType>::kFormat;
  constexpr bool kMinimum =
      kFormat.scaling == Scaling::kScaleMinimum || kFormat.scaling == Scaling::kSuperMinimum;
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    uint32_t a[2][4], rest[2][4];
#pragma unroll
    for (int32_t m = 0; m < 2; ++m) {
      if constexpr (kFormat.bits >= 16) {
        ExpandPlain(unit, 2 * h + m, row_scale, a[m], rest[m]);
      } else {
        ExpandCodes(unit, 2 * h + m, a[m]);
      }
    }
#pragma unroll
    for (int32_t nt = 0; nt < kNt; ++nt) {
      const ActivationPair pair = x.Pair(h, nt);
      if constexpr (kFormat.bits >= 16) {
#pragma unroll
        for (int32_t m = 0; m < 2; ++m) {
          if constexpr (kType == WeightType::kF32) {
            uint32_t b[2];
            StepOf(pair.hi, m, b);
            gpu::MmaM16N8K16(acc[nt], rest[m], b, acc[nt]);
          }
          MultiplyStep(a[m], pair, m, acc[nt]);
        }
      } else if constexpr (kFormat.scaling == Scaling::kSuperScale) {
#pragma unroll
        for (int32_t m = 0; m < 2; ++m) {
          float sums[4] = {0, 0, 0, 0};
          MultiplyStep(a[m], pair, m, sums);
          Scale(FactorsOf(unit, h, m), sums, acc[nt]);
        }
      } else {
        float sums[4] = {0, 0, 0, 0};
        MultiplyStep(a[0], pair, 0, sums);
        MultiplyStep(a[1], pair, 1, sums);
        const Factors f = FactorsOf(unit, h, 0);
        Scale(f, sums, acc[nt]);
        if constexpr (kMinimum) {
          const float2 total = x.Sums(h, nt);
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            acc[nt][i] = __fmaf_rn(f.minimum[i / 2], i % 2 == 0 ? total.x : total.y, acc[nt][i]);
          }
        }
      }
    }
  }
}

}  // namespace strata::cuda
