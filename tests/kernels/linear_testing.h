#pragma once

#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear_cpu.h"
#include "kernels/linear_ops.h"

namespace strata::testing {

inline constexpr WeightType kAllWeightTypes[] = {
    WeightType::kF32,  WeightType::kF16,  WeightType::kBF16, WeightType::kQ8_0,
    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
    WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K};

inline bool IsPlain(WeightType type) { return InfoOf(type).block_values == 1; }

// The instruction sets that this CPU has.
inline std::vector<Isa> AvailableIsas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (ChooseIsa(IsaName(isa)).ok()) isas.push_back(isa);
  }
  return isas;
}

// A fixed stream of numbers, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  uint32_t Bits() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<uint32_t>(state_ >> 33);
  }
  // In [-1, 1).
  float Float() { return static_cast<float>(Bits() & 0xffffff) * 0x1p-23f - 1.0f; }

  std::vector<float> Floats(size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& x : values) x = Float() * scale;
    return values;
  }

 private:
  uint64_t state_;
};

// Floats that end where unreadable memory begins, so that a kernel's read or write past the end
// stops the test.
class GuardedFloats {
 public:
  explicit GuardedFloats(size_t count) : bytes_((count * 4 + 4095) / 4096 * 4096) {
    map_ = static_cast<char*>(
        mmap(nullptr, bytes_ + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    STRATA_CHECK(map_ != MAP_FAILED && mprotect(map_ + bytes_, 4096, PROT_NONE) == 0);
    data_ = reinterpret_cast<float*>(map_ + bytes_ - count * 4);
  }
  explicit GuardedFloats(const std::vector<float>& values) : GuardedFloats(values.size()) {
    std::memcpy(data_, values.data(), values.size() * 4);
  }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;
  ~GuardedFloats() { munmap(map_, bytes_ + 4096); }
  float* data() { return data_; }

 private:
  size_t bytes_;
  char* map_;
  float* data_;
};

// Random weights of one type and a bound of |scale code| + |minimum| over them: what a value's two
// parts can be before they cancel.
struct TestWeights {
  std::vector<std::byte> bytes;
  double part_bound = 0;
  WeightSource source;
};

inline TestWeights MakeWeights(WeightType type, int32_t out_features, int32_t in_features,
                               uint64_t seed) {
  Random random(seed);
  TestWeights weights;
  weights.source = {type, out_features, in_features, nullptr};
  const WeightTypeInfo& info = InfoOf(type);
  weights.bytes.resize(RowBytes(type, in_features) * out_features);
  for (std::byte& b : weights.bytes) b = static_cast<std::byte>(random.Bits() & 255);
  // Parameters and plain values must be finite: |d| < 2^-6, |m| < 2^-3.
  const float d = 0x1p-6f, m = 0x1p-3f;
  const auto put = [&](size_t offset, float limit) {
    const Half h = FloatToHalf(random.Float() * limit);
    std::memcpy(weights.bytes.data() + offset, &h, sizeof(h));
  };
  for (size_t i = 0; i < weights.bytes.size(); i += info.block_bytes) {
    const float plain = random.Float();
    switch (type) {
      case WeightType::kF32:
        std::memcpy(weights.bytes.data() + i, &plain, sizeof(plain));
        break;
      case WeightType::kBF16:
        std::memcpy(weights.bytes.data() + i, reinterpret_cast<const char*>(&plain) + 2, 2);
        break;
      case WeightType::kF16:
        put(i, 1);
        break;
      case WeightType::kQ6_K:
        put(i + 208, d);
        break;
      case WeightType::kQ4_1:
      case WeightType::kQ5_1:
      case WeightType::kQ4_K:
      case WeightType::kQ5_K:
        put(i + 2, type == WeightType::kQ4_K || type == WeightType::kQ5_K ? d : m);
        [[fallthrough]];
      default:
        put(i, d);
    }
  }
  switch (type) {
    case WeightType::kQ8_0:
      weights.part_bound = 128 * d;
      break;
    case WeightType::kQ4_0:
    case WeightType::kQ5_0:
      weights.part_bound = 16 * d;
      break;
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
      weights.part_bound = 31 * d + m;
      break;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      weights.part_bound = 63 * 31 * d + 63 * d;
      break;
    case WeightType::kQ6_K:
      weights.part_bound = 128 * 32 * d;
      break;
    default:
      weights.part_bound = 1;
  }
  weights.source.data = weights.bytes.data();
  return weights;
}

}  // namespace strata::testing
