// The page codec's body, once for all instruction sets; included by codec_<isa>.cc alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/codec_kernels.h"

namespace strata {

// Ops is the vector vocabulary of isa_<isa>-inl.h. Every operation below rounds as binary32 does,
// one at a time, so all instruction sets give the bytes of the reference codec.
template <class Ops>
struct PageEncoder {
  using F = typename Ops::F;
  using I = typename Ops::I;
  static constexpr int kLanes = Ops::kLanes;
  static constexpr int kTokens = 64;
  static constexpr int kGroupsMax = 16 * kTokens;  // V at head dim 256 with groups of 16

  // What the codes of a tensor are made with, one entry a group.
  struct Params {
    alignas(64) float min[kGroupsMax];
    alignas(64) float max[kGroupsMax];
    alignas(64) float divisor[kGroupsMax];
  };

  // Rounds the parameters and stores them; `count` is a multiple of 16. Leaves mn in params.min.
  static void StoreParams(int count, Params* params, uint16_t* mn, uint16_t* s) {
    for (int i = 0; i < count; i += kLanes) {
      // + 0 makes a group of zeros of both signs start at +0. Halves: mn is exact.
      const F min = Ops::Add(Ops::Load(params->min + i), Ops::Zero());
      const F max = Ops::Load(params->max + i);
      const F range = Ops::Add(Ops::Sub(max, min), Ops::Zero());
      // What the subtraction rounded away (Knuth). Where that is positive the range must go up by
      // one place, or mn + 16 s could end below max.
      const F low = Ops::Sub(range, max);
      const F lost = Ops::Sub(Ops::Sub(max, Ops::Sub(range, low)), Ops::Add(min, low));
      const F bound = Ops::NextUpWherePositive(range, lost);
      Ops::StoreHalf(mn + i, min);
      Ops::StoreHalfUp(s + i, Ops::Mul(bound, Ops::Set1(0x1p-4f)));
      Ops::Store(params->min + i, min);
      // A zero step (all values are mn) divides zeros: any positive divisor gives code 0.
      Ops::Store(params->divisor + i, Ops::Max(Ops::LoadHalf(s + i), Ops::Set1(0x1p-25f)));
    }
  }

  // One line of both planes: 16 words of 16 codes; `source` is element 0, the next one `stride`
  // halves on.
  static void EncodeLine(const uint16_t* source, ptrdiff_t stride, const float* mn,
                         const float* divisor, uint8_t* hi_line, uint8_t* lo_line) {
    for (int lane = 0; lane < 16; lane += kLanes) {
      I hi = Ops::ZeroInt();
      I lo = Ops::ZeroInt();
      // From the most significant bits down: bits 8 b + 2 z hold element 4 z + b.
#pragma GCC unroll 4
      for (int b = 3; b >= 0; --b) {
#pragma GCC unroll 4
        for (int z = 3; z >= 0; --z) {
          const int e = 4 * z + b;
          const F offset = Ops::Sub(Ops::LoadHalf(source + e * stride + lane), Ops::Set1(mn[e]));
          const I code = Ops::MinInt(Ops::Trunc(Ops::Div(offset, Ops::Set1(divisor[e]))), 15);
          hi = Ops::OrInt(Ops::template ShiftLeft<2>(hi), Ops::template ShiftRight<2>(code));
          lo = Ops::OrInt(Ops::template ShiftLeft<2>(lo), Ops::AndInt(code, 3));
        }
      }
      Ops::StoreInt(hi_line + 4 * lane, hi);
      if (lo_line != nullptr) Ops::StoreInt(lo_line + 4 * lane, lo);
    }
  }

  static void Lines(const EncodeArgs& args, bool is_k, const Params& params) {
    const int columns = args.head_dim / 16;
    for (int tt = 0; tt < 4; ++tt) {
      for (int j = 0; j < columns; ++j) {
        const size_t line = size_t{64} * (tt * columns + j);
        uint8_t* lo = args.lo == nullptr ? nullptr : args.lo + line;
        const int group = is_k ? 16 * j : 16 * j / args.v_group * kTokens + 16 * tt;
        const uint16_t* source =
            is_k ? args.source + size_t{16} * (tt * args.head_dim + 16 * j)
                 : args.source + size_t{16} * tt * args.head_dim + size_t{16} * j;
        const ptrdiff_t stride = is_k ? 16 : args.head_dim;
        EncodeLine(source, stride, params.min + group, params.divisor + group, args.base + line,
                   lo);
      }
    }
  }

  static void EncodeK(const EncodeArgs& args) {
    Params params;
    const int dim = args.head_dim;
    for (int c = 0; c < dim; ++c) {
      F min = Ops::LoadHalf(args.source + size_t{16} * c);
      F max = min;
      for (int t = 0; t < kTokens; t += kLanes) {
        const F x = Ops::LoadHalf(args.source + size_t{16} * (t / 16 * dim + c) + t % 16);
        min = Ops::Min(min, x);
        max = Ops::Max(max, x);
      }
      params.min[c] = Ops::ReduceMin(min);
      params.max[c] = Ops::ReduceMax(max);
    }
    uint16_t* mn = reinterpret_cast<uint16_t*>(args.base + size_t{16} * dim);
    StoreParams(dim, &params, mn, mn + dim);
    Lines(args, true, params);
  }

  static void EncodeV(const EncodeArgs& args) {
    Params params;
    const int dim = args.head_dim;
    const int groups = dim / args.v_group;
    for (int g = 0; g < groups; ++g) {
      for (int t = 0; t < kTokens; ++t) {
        const uint16_t* source = args.source + size_t{1} * t * dim + g * args.v_group;
        F min = Ops::LoadHalf(source);
        F max = min;
        for (int c = kLanes; c < args.v_group; c += kLanes) {
          const F x = Ops::LoadHalf(source + c);
          min = Ops::Min(min, x);
          max = Ops::Max(max, x);
        }
        params.min[g * kTokens + t] = Ops::ReduceMin(min);
        params.max[g * kTokens + t] = Ops::ReduceMax(max);
      }
    }
    uint16_t* mn = reinterpret_cast<uint16_t*>(args.base + size_t{16} * dim);
    StoreParams(groups * kTokens, &params, mn, mn + groups * kTokens);
    Lines(args, false, params);
  }

  static constexpr CodecKernels Table() { return {&Ops::AllFinite, &EncodeK, &EncodeV}; }
};

}  // namespace strata
