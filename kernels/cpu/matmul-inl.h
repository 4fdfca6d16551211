#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_table-inl.h"

// Products with packed weights, written once over S, a set of 16-lane primitives that each
// instruction set defines in an unnamed namespace (so that every instantiation is local to its
// object file):
//   V 16 floats, I 16 int32, Bytes 64 bytes as 16 lanes of 4; kMaxRows
//   Zero, Set, Load, LoadN, StoreN, Add, Mul, Fma(a, b, c) = a b + c, FromInt
//   LoadHalf, LoadBf16, LoadU8, LoadI8: 16 values as floats
//   LoadBytes, And, Or, ShiftRight<n>, ShiftLeft<n>: shifts move bits across bytes
//   Dot<bits, lines>: sum over lines of four-byte products with int8 activations
//   DotSigned<lines>: the same of 8-bit codes minus 128, where that is cheaper than an offset
//   Join(high, low) = kLowWeight high + low
//   SubtractShifted(sum, n, shift) = sum - (n << shift)
//   Quantize32: one group of activations
namespace strata {

// The row groups of a panel: whole groups of max_rows, then falling powers of two. Calls
// body(first row, rows) in order.
template <class S, class Body>
[[gnu::always_inline]] inline void ForEachRowGroup(int32_t rows, const Body& body) {
  int32_t row = 0;
  for (int32_t size = S::kMaxRows; size > 0; size /= 2) {
    for (; rows - row >= size; row += size) body(row, size);
  }
}

template <class S>
struct Panel {
  static constexpr int32_t Groups(int32_t in_features) {
    return in_features / kGroupInputs + (in_features % kGroupInputs != 0 ? 1 : 0);
  }

  static void Quantize(const PanelArgs& args) {
    const int32_t groups = args.in_features / kGroupInputs;
    ForEachRowGroup<S>(args.rows, [&](int32_t first, int32_t size) {
      if (first + size <= args.first_row || first >= args.last_row) return;
      for (int32_t i = 0; i < size; ++i) {
        if (first + i < args.first_row || first + i >= args.last_row) continue;
        const float* x = args.x + size_t{1} * (first + i) * args.in_features;
        uint8_t* record = args.panel + size_t{1} * first * groups * kQuantizedBytes;
        for (int32_t g = 0; g < groups; ++g, record += size * kQuantizedBytes) {
          QuantizeGroup(x + g * kGroupInputs, i, size, record);
        }
      }
    });
  }

  static void CopyPlain(const PanelArgs& args) {
    const int32_t groups = Groups(args.in_features);
    ForEachRowGroup<S>(args.rows, [&](int32_t first, int32_t size) {
      for (int32_t i = 0; i < size; ++i) {
        if (first + i < args.first_row || first + i >= args.last_row) continue;
        const float* x = args.x + size_t{1} * (first + i) * args.in_features;
        auto* record =
            reinterpret_cast<float*>(args.panel) + (size_t{1} * first * groups + i) * kGroupInputs;
        for (int32_t k = 0; k < groups * kGroupInputs; ++k) {
          record[k / kGroupInputs * (size * kGroupInputs) + k % kGroupInputs] =
              k < args.in_features ? x[k] : 0.0f;
        }
      }
    });
  }

 private:
  static void QuantizeGroup(const float* x, int32_t row, int32_t rows, uint8_t* record) {
    auto* high = reinterpret_cast<int8_t*>(record) + row * kGroupInputs;
    auto* scale = reinterpret_cast<float*>(record + 2 * rows * kGroupInputs) + row;
    auto* sums = reinterpret_cast<int32_t*>(scale) + 2 * rows;
    S::Quantize32(x, high, high + rows * kGroupInputs, scale, sums + rows, sums + 2 * rows);
    sums[0] = sums[rows] + sums[2 * rows];
    scale[rows] = *scale * static_cast<float>(sums[0]);
  }
};

// The R rows of one panel record.
template <int R>
struct QuantizedRows {
  const uint8_t* record;
  const int8_t* high(int r) const {
    return reinterpret_cast<const int8_t*>(record) + r * kGroupInputs;
  }
  const int8_t* low(int r) const { return high(r) + R * kGroupInputs; }
  const float* scale(int r) const {
    return reinterpret_cast<const float*>(record + 2 * R * kGroupInputs) + r;
  }
  const float* scaled_sum(int r) const { return scale(r) + R; }
  const int32_t* sum(int r) const {
    return reinterpret_cast<const int32_t*>(record + 2 * R * kGroupInputs) + 2 * R + r;
  }
  const int32_t* first_sum(int r) const { return sum(r) + R; }
  const int32_t* last_sum(int r) const { return sum(r) + 2 * R; }
};

template <class S, int kType>
struct QuantizedMatmul {
  using V = typename S::V;
  using Bytes = typename S::Bytes;
  static constexpr PackedFormat kFormat = kPackedFormat[kType];
  static constexpr int kGroups = kFormat.record_values / kGroupInputs;
  static constexpr int kRecordBytes = kFormat.param_bytes + kGroups * kFormat.group_bytes;

  // The codes of 32 inputs as bytes, line j holding inputs 4 j .. 4 j + 3.
  [[gnu::always_inline]] static void Unpack(const uint8_t* codes, Bytes* w) {
    if constexpr (kFormat.bits == 8) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) w[j] = S::LoadBytes(codes + 64 * j);
      return;
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Bytes line = S::LoadBytes(codes + 64 * j);
      w[j] = S::And(line, 0x0f);
      w[j + 4] = S::And(S::template ShiftRight<4>(line), 0x0f);
    }
    if constexpr (kFormat.bits == 5) {
      const Bytes high = S::LoadBytes(codes + 256);
      w[0] = S::Or(w[0], S::And(S::template ShiftLeft<4>(high), 0x10));
      w[1] = S::Or(w[1], S::And(S::template ShiftLeft<3>(high), 0x10));
      w[2] = S::Or(w[2], S::And(S::template ShiftLeft<2>(high), 0x10));
      w[3] = S::Or(w[3], S::And(S::template ShiftLeft<1>(high), 0x10));
      w[4] = S::Or(w[4], S::And(high, 0x10));
      w[5] = S::Or(w[5], S::And(S::template ShiftRight<1>(high), 0x10));
      w[6] = S::Or(w[6], S::And(S::template ShiftRight<2>(high), 0x10));
      w[7] = S::Or(w[7], S::And(S::template ShiftRight<3>(high), 0x10));
    }
    if constexpr (kFormat.bits == 6) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Bytes high = S::LoadBytes(codes + 256 + 64 * half);
        Bytes* out = w + 4 * half;
        out[0] = S::Or(out[0], S::And(S::template ShiftLeft<4>(high), 0x30));
        out[1] = S::Or(out[1], S::And(S::template ShiftLeft<2>(high), 0x30));
        out[2] = S::Or(out[2], S::And(high, 0x30));
        out[3] = S::Or(out[3], S::And(S::template ShiftRight<2>(high), 0x30));
      }
    }
  }

  // Sum over 4 * lines inputs of code times activation; no more than 32 * 255 * kActivationMax,
  // which is 2^28.
  template <int lines>
  [[gnu::always_inline]] static typename S::I Dot(const Bytes* w, const int8_t* high,
                                                  const int8_t* low) {
    return S::Join(S::template Dot<kFormat.bits, lines>(w, high),
                   S::template Dot<kFormat.bits, lines>(w, low));
  }
  // The same of codes minus their offset.
  template <int lines>
  [[gnu::always_inline]] static typename S::I DotOffset(const Bytes* w, const int8_t* high,
                                                        const int8_t* low, const int32_t* sum) {
    if constexpr (kFormat.bits == 8 && S::kHasDotSigned) {
      return S::Join(S::template DotSigned<lines>(w, high), S::template DotSigned<lines>(w, low));
    } else {
      return S::SubtractShifted(Dot<lines>(w, high, low), *sum, kFormat.offset_shift);
    }
  }

  // acc[r] += the products of one group of 32 inputs.
  template <int R>
  [[gnu::always_inline]] static void Group(const uint8_t* params, const uint8_t* codes, int group,
                                           const QuantizedRows<R>& rows, V* acc) {
    Bytes w[8];
    Unpack(codes, w);
    V scale = S::LoadHalf(kFormat.params == PackedParams::kScale ? params + 32 * group : params);
    if constexpr (kFormat.params == PackedParams::kSuperScale) {
      const V first = S::LoadI8(params + 64 + 32 * group);
      const V last = S::LoadI8(params + 80 + 32 * group);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const V a = S::FromInt(DotOffset<4>(w, rows.high(r), rows.low(r), rows.first_sum(r)));
        const V b =
            S::FromInt(DotOffset<4>(w + 4, rows.high(r) + 16, rows.low(r) + 16, rows.last_sum(r)));
        const V dot = S::Fma(b, last, S::Mul(a, first));
        acc[r] = S::Fma(dot, S::Mul(scale, S::Set(*rows.scale(r))), acc[r]);
      }
      return;
    }
    V minimum = S::Zero();
    if constexpr (kFormat.params == PackedParams::kScaleMinimum) minimum = S::LoadHalf(params + 32);
    if constexpr (kFormat.params == PackedParams::kSuperMinimum) {
      scale = S::Mul(scale, S::LoadU8(params + 64 + 16 * group));
      minimum =
          S::Mul(S::Sub(S::Zero(), S::LoadHalf(params + 32)), S::LoadU8(params + 192 + 16 * group));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V row_scale = S::Mul(scale, S::Set(*rows.scale(r)));
      if constexpr (kFormat.offset_shift >= 0) {
        const V dot = S::FromInt(DotOffset<8>(w, rows.high(r), rows.low(r), rows.sum(r)));
        acc[r] = S::Fma(dot, row_scale, acc[r]);
      } else {
        const V dot = S::FromInt(Dot<8>(w, rows.high(r), rows.low(r)));
        acc[r] = S::Fma(dot, row_scale, acc[r]);
        acc[r] = S::Fma(minimum, S::Set(*rows.scaled_sum(r)), acc[r]);
      }
    }
  }

  template <int R>
  static void Tile(const MatmulArgs& args, const uint8_t* tile, int32_t first_row, V* acc) {
    const int32_t groups = args.in_features / kGroupInputs;
    QuantizedRows<R> rows{args.panel + size_t{1} * first_row * groups * kQuantizedBytes};
    for (int32_t first = 0; first < groups; first += kGroups, tile += kRecordBytes) {
      const int32_t left = groups - first;
      const int32_t count = left < kGroups ? left : kGroups;
      for (int32_t g = 0; g < count; ++g, rows.record += R * kQuantizedBytes) {
        Group<R>(tile, tile + kFormat.param_bytes + g * kFormat.group_bytes, g, rows, acc);
      }
    }
  }
};

template <class S, int kType>
struct PlainMatmul {
  using V = typename S::V;
  static constexpr PackedFormat kFormat = kPackedFormat[kType];

  [[gnu::always_inline]] static V LoadWeights(const uint8_t* p) {
    if constexpr (kType == 0) return S::Load(reinterpret_cast<const float*>(p));
    if constexpr (kType == 1) return S::LoadHalf(p);
    if constexpr (kType == 2) return S::LoadBf16(p);
  }

  template <int R>
  static void Tile(const MatmulArgs& args, const uint8_t* tile, int32_t first_row, V* acc) {
    const int32_t groups = Panel<S>::Groups(args.in_features);
    const float* x =
        reinterpret_cast<const float*>(args.panel) + size_t{1} * first_row * groups * kGroupInputs;
    for (int32_t k = 0; k < args.in_features; k += kGroupInputs, x += R * kGroupInputs) {
      const int32_t left = args.in_features - k;
      const int32_t count = left < kGroupInputs ? left : kGroupInputs;
      for (int32_t i = 0; i < count; ++i, tile += kFormat.group_bytes) {
        const V w = LoadWeights(tile);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r] = S::Fma(w, S::Set(x[r * kGroupInputs + i]), acc[r]);
      }
    }
  }
};

// Tiles times row groups: a tile stays in the first-level cache while every group passes it.
template <class S, class Kernel>
struct TileLoop {
  using V = typename S::V;

  static void Run(const MatmulArgs& args) {
    for (int32_t t = args.first_tile; t < args.last_tile; ++t) {
      const uint8_t* tile = args.tiles + args.tile_bytes * t;
      ForEachRowGroup<S>(args.rows, [&](int32_t row, int32_t size) {
        Dispatch<S::kMaxRows>(args, tile, t, row, size);
      });
    }
  }

 private:
  template <int R>
  [[gnu::always_inline]] static void Dispatch(const MatmulArgs& args, const uint8_t* tile,
                                              int32_t t, int32_t row, int32_t size) {
    if (size == R) {
      RunGroup<R>(args, tile, t, row);
    } else if constexpr (R > 1) {
      Dispatch<R / 2>(args, tile, t, row, size);
    }
  }

  template <int R>
  [[gnu::noinline]] static void RunGroup(const MatmulArgs& args, const uint8_t* tile, int32_t t,
                                         int32_t row) {
    V acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r] = S::Zero();
    Kernel::template Tile<R>(args, tile, row, acc);
    const int32_t output = t * kTileOutputs;
    const int32_t left = args.out_features - output;
    const int32_t lanes = left < kTileOutputs ? left : kTileOutputs;
    const V bias = args.bias == nullptr ? S::Zero() : S::LoadN(args.bias + output, lanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* y = args.y + args.y_stride * (row + r) + output;
      V sum = args.bias == nullptr ? acc[r] : S::Add(acc[r], bias);
      if (args.accumulate) sum = S::Add(S::LoadN(y, lanes), sum);
      S::StoreN(y, lanes, sum);
    }
  }
};

template <class S, int kType>
using MatmulOf = TileLoop<S, QuantizedMatmul<S, kType>>;
template <class S, int kType>
using PlainMatmulOf = TileLoop<S, PlainMatmul<S, kType>>;

}  // namespace strata
