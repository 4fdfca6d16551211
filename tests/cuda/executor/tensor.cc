#include "tests/cuda/executor/tensor.h"

#include <array>

#include "tests/cuda/executor/sanitizers.h"

namespace executor {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

float FloatOfHalf(uint32_t bits) {
  static const auto* table = [] {
    auto* values = new std::array<float, 1 << 16>;
    for (uint32_t i = 0; i < values->size(); ++i) {
      __half_raw raw;
      raw.x = static_cast<unsigned short>(i);
      (*values)[i] = __half2float(__half(raw));
    }
    return values;
  }();
  return (*table)[bits & 0xffff];
}

float FloatOfBf16(uint32_t bits) {
  const uint32_t wide = bits << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

struct FloatMma {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
};

// PTX ISA, fragments of mma.m16n8k16 for 16-bit types, with g = lane / 4 and t = lane % 4:
//   a register r, half h: row g + 8 (r % 2), column 2t + h + 8 (r / 2)
//   b register r, half h: row 2t + h + 8 r, column g
//   c and d element r:    row g + 8 (r / 2), column 2t + r % 2
template <float (*ToFloat)(uint32_t)>
void RunFloatMma(void* const* lanes, unsigned) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* mine = static_cast<const FloatMma*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      for (int h = 0; h < 2; ++h) {
        a[g + 8 * (r % 2)][2 * t + h + 8 * (r / 2)] = ToFloat(mine->a[r] >> (16 * h));
      }
    }
    for (int r = 0; r < 2; ++r) {
      for (int h = 0; h < 2; ++h) b[2 * t + h + 8 * r][g] = ToFloat(mine->b[r] >> (16 * h));
    }
    for (int r = 0; r < 4; ++r) d[g + 8 * (r / 2)][2 * t + r % 2] = mine->c[r];
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto* mine = static_cast<const FloatMma*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) mine->d[r] = d[g + 8 * (r / 2)][2 * t + r % 2];
  }
}

template <float (*ToFloat)(uint32_t)>
void FloatMmaOf(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                Location location) {
  float out[4];  // d may be c
  FloatMma payload{out, a, b, c};
  WarpCollective(WarpOp::kMma, kAllLanes, &payload, &RunFloatMma<ToFloat>, false, location);
  std::memcpy(d, out, sizeof out);
}

struct IntMma {
  int32_t* d;
  const uint32_t* a;
  const uint32_t* b;
  const int32_t* c;
  bool a_signed, b_signed;
};

uint32_t Widen(uint32_t byte, bool is_signed) {
  byte &= 0xff;
  return is_signed && byte >= 128 ? byte - 256 : byte;
}

// PTX ISA, fragments of mma.m16n8k32 for 8-bit types:
//   a register r, byte y: row g + 8 (r % 2), column 4t + y + 16 (r / 2)
//   b register r, byte y: row 4t + y + 16 r, column g
//   c and d as above. Unsigned arithmetic: sums wrap.
void RunIntMma(void* const* lanes, unsigned) {
  uint32_t a[16][32], b[32][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* mine = static_cast<const IntMma*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      for (int y = 0; y < 4; ++y) {
        a[g + 8 * (r % 2)][4 * t + y + 16 * (r / 2)] = Widen(mine->a[r] >> (8 * y), mine->a_signed);
      }
    }
    for (int r = 0; r < 2; ++r) {
      for (int y = 0; y < 4; ++y) {
        b[4 * t + y + 16 * r][g] = Widen(mine->b[r] >> (8 * y), mine->b_signed);
      }
    }
    for (int r = 0; r < 4; ++r) {
      d[g + 8 * (r / 2)][2 * t + r % 2] = static_cast<uint32_t>(mine->c[r]);
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 32; ++k) {
      for (int j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto* mine = static_cast<const IntMma*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      mine->d[r] = static_cast<int32_t>(d[g + 8 * (r / 2)][2 * t + r % 2]);
    }
  }
}

struct MatrixLoad {
  uint16_t row[8];
  uint32_t out[4];
  int count;
  bool transposed;
};

// A read that the sanitizers see as the calling thread's.
void ReadRow(const void* row, uint16_t (&out)[8], Location location) {
  if (AsanPoisoned(row, sizeof out))
    Fail(location, "ldmatrix: the row %p is outside its array", row);
  TsanRead(row, sizeof out);
  for (int i = 0; i < 8; ++i) out[i] = static_cast<const volatile uint16_t*>(row)[i];
}

// Lane l receives of each 8x8 matrix the elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1), or
// those of the transposed matrix; row i of matrix m came from lane 8m + i.
void RunLdmatrix(void* const* lanes, unsigned) {
  for (int lane = 0; lane < 32; ++lane) {
    auto* mine = static_cast<MatrixLoad*>(lanes[lane]);
    for (int m = 0; m < mine->count; ++m) {
      uint32_t pair[2];
      for (int h = 0; h < 2; ++h) {
        const int i = lane / 4, j = 2 * (lane % 4) + h;
        const int row = mine->transposed ? j : i, column = mine->transposed ? i : j;
        pair[h] = static_cast<const MatrixLoad*>(lanes[8 * m + row])->row[column];
      }
      mine->out[m] = pair[0] | pair[1] << 16;
    }
  }
}

}  // namespace

void MmaM16N8K16F16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                    const float (&c)[4], Location location) {
  FloatMmaOf<&FloatOfHalf>(d, a, b, c, location);
}

void MmaM16N8K16Bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     const float (&c)[4], Location location) {
  FloatMmaOf<&FloatOfBf16>(d, a, b, c, location);
}

void MmaM16N8K32(bool a_signed, bool b_signed, int32_t (&d)[4], const uint32_t (&a)[4],
                 const uint32_t (&b)[2], const int32_t (&c)[4], Location location) {
  int32_t out[4];
  IntMma payload{out, a, b, c, a_signed, b_signed};
  WarpCollective(WarpOp::kMma, kAllLanes, &payload, &RunIntMma, false, location);
  std::memcpy(d, out, sizeof out);
}

void Ldmatrix(int count, uint32_t* out, const void* row, bool transposed, Location location) {
  MatrixLoad payload{{}, {}, count, transposed};
  if (static_cast<int>(LaneId()) < 8 * count) {
    if (reinterpret_cast<uintptr_t>(row) & 15) {
      Fail(location, "ldmatrix: the row address %p is not 16-byte aligned", row);
    }
    ReadRow(row, payload.row, location);
  }
  WarpCollective(WarpOp::kLdmatrix, kAllLanes, &payload, &RunLdmatrix, false, location);
  for (int m = 0; m < count; ++m) out[m] = payload.out[m];
}

}  // namespace executor
