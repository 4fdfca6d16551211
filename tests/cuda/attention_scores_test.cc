// The integers inside attention over codes are the same on every device, bit for bit: the int8 that
// queries become, and their dot products with the codes.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/half.h"
#include "gtest/gtest.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/isa.h"
#include "tests/cuda/attention_test_kernels_launch.h"
#include "tests/cuda/device_buffer.h"
#include "tests/kernels/attention_test_util.h"

namespace strata {
namespace {

constexpr int kQueries = 8;
constexpr float kLog2E = 1.44269504f;

struct Integers {
  std::vector<int8_t> codes;  // [8][dim]
  std::vector<int32_t> dots;  // [8][64]
};

// One page of one head, and queries.
struct Case {
  std::string name;
  int32_t dim;
  std::vector<float> k;  // [64][dim]
  std::vector<float> q;  // [8][dim]
};

// Halves in tiles of 16 tokens.
std::vector<std::byte> F16Page(const Case& c) {
  const PageFormat f16{KvKind::kF16, KvKind::kF16, 1, c.dim};
  std::vector<std::byte> page(f16.BaseBytes());
  Half* k = reinterpret_cast<Half*>(page.data());
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    for (int32_t i = 0; i < c.dim; ++i) k[KF16Index(c.dim, t, i)] = FloatToHalf(c.k[t * c.dim + i]);
  }
  return page;
}

Integers OnCpu(const AttentionKernels& kernels, const Case& c, CodeBits bits, const std::byte* base,
               const std::byte* refine) {
  Integers out{std::vector<int8_t>(kQueries * c.dim), std::vector<int32_t>(kQueries * 64)};
  std::vector<float> scaled(c.q);
  for (float& x : scaled) x *= kLog2E;
  const uint8_t* k = reinterpret_cast<const uint8_t*>(base);
  const uint8_t* lo = refine == nullptr ? k : reinterpret_cast<const uint8_t*>(refine);
  kernels.code_scores(
      {c.dim, kQueries, bits, k, lo, scaled.data(), out.codes.data(), out.dots.data()});
  return out;
}

Integers OnCuda(const Case& c, const PageFormat& stored, bool as_i2,
                const std::vector<std::byte>& base, const std::vector<std::byte>& refine) {
  const DeviceBuffer<std::byte> device_base(base);
  const DeviceBuffer<std::byte> device_refine(refine.empty() ? std::vector<std::byte>(16) : refine);
  const DeviceBuffer<float> q(c.q);
  const DeviceBuffer<cuda::AttentionPage> pages(std::vector<cuda::AttentionPage>{
      {device_base.data(), device_refine.data(), ~uint64_t{0}, 0, 0}});
  const DeviceBuffer<cuda::AttentionSplit> splits(
      std::vector<cuda::AttentionSplit>{{0, {0, 0, 0, 0}, {1, 0, 0, 0}}});
  const DeviceBuffer<cuda::AttentionWork> work(
      std::vector<cuda::AttentionWork>{{0, 63, 0, kQueries, 0, 0, 1}});
  cuda::AttentionLaunch launch{};
  launch.query_heads = kQueries;
  launch.kv_heads = 1;
  launch.head_dim = c.dim;
  launch.q = q.data();
  launch.pages = pages.data();
  launch.splits = splits.data();
  launch.work = work.data();
  launch.layouts[0] = {static_cast<uint32_t>(stored.KHeadBytes()),
                       static_cast<uint32_t>(stored.VHead(0)),
                       static_cast<uint32_t>(stored.VHeadBytes()),
                       static_cast<uint32_t>(stored.KRefine(0)),
                       static_cast<uint32_t>(stored.VRefine(0)),
                       static_cast<uint32_t>(stored.PlaneBytes()),
                       as_i2 ? cuda::AttentionRead::kI2 : cuda::AttentionRead::kI4,
                       cuda::AttentionRead::kI2,
                       {0, 0}};
  DeviceBuffer<int8_t> codes(size_t{kQueries} * c.dim);
  DeviceBuffer<int32_t> dots(size_t{kQueries} * 64);
  STRATA_CUDA_OK(cuda::LaunchCodeScores(launch, codes.data(), dots.data()));
  STRATA_CUDA_OK(cudaDeviceSynchronize());
  return {codes.Download(), dots.Download()};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  uint32_t seed = 1;
  for (int32_t dim : {16, 64, 80, 96, 112, 128, 256}) {
    TestRandom random(seed++);
    const auto make = [&](const char* name, auto k, auto q) {
      Case c{std::string(name) + ", head dim " + std::to_string(dim), dim, {}, {}};
      for (int32_t t = 0; t < kBlockTokens; ++t) {
        for (int32_t i = 0; i < dim; ++i) c.k.push_back(k(t, i));
      }
      for (int32_t h = 0; h < kQueries; ++h) {
        for (int32_t i = 0; i < dim; ++i) c.q.push_back(q(h, i));
      }
      cases.push_back(c);
    };
    const auto normal = [&](int32_t, int32_t) { return random.Normal(); };
    const auto sign = [](int32_t x) { return x % 2 == 0 ? 1.0f : -1.0f; };
    make("random", normal, normal);
    // Structured: every code in turn; queries that round to halves, which must go to even.
    make(
        "codes in turn", [](int32_t t, int32_t i) { return static_cast<float>((t + i) % 16); },
        [](int32_t h, int32_t i) { return static_cast<float>(i % 255 - 127 + h) / 2; });
    make(
        "one channel", [](int32_t t, int32_t i) { return i == 5 ? static_cast<float>(t) : 1.0f; },
        [](int32_t h, int32_t i) { return i == 5 ? 1.0f : static_cast<float>(h); });
    make(
        "a constant page", [](int32_t, int32_t) { return 3.25f; }, normal);
    // Hostile: the largest steps, the smallest, none, and both in one page; queries of any size.
    make(
        "the largest halves", [&](int32_t t, int32_t i) { return 65504.0f * sign(t + i / 3); },
        [&](int32_t h, int32_t i) { return 1e30f * sign(i) / static_cast<float>(1 + h); });
    make(
        "the smallest halves",
        [](int32_t t, int32_t i) { return 0x1p-24f * static_cast<float>((t * 7 + i) % 3); },
        [&](int32_t h, int32_t i) { return static_cast<float>(i - 8 * h); });
    make(
        "an outlier channel",
        [&](int32_t t, int32_t i) {
          return i == dim / 2 ? 65504.0f * sign(t) : 1e-4f * static_cast<float>(t % 5);
        },
        [&](int32_t h, int32_t i) { return i == dim / 2 ? 1e-9f * h : random.Normal(); });
    make("denormal queries", normal,
         [](int32_t h, int32_t i) { return 1e-40f * static_cast<float>(i - 8 * h); });
    make("queries of zero", normal, [](int32_t h, int32_t) { return h % 2 == 0 ? 0.0f : -0.0f; });
  }
  return cases;
}

TEST(CudaAttentionScores, IntegersAreTheCpusOwn) {
  const KernelsUnderTest reference = MakeKernels("reference", 1);
  int compared = 0;
  std::string isas;
  for (const char* name : {"scalar", "avx2", "avx512"}) {
    if (ChooseIsa(name).ok()) isas += std::string(" ") + name;
  }
  for (const Case& c : Cases()) {
    for (const KvKind kind : {KvKind::kI4, KvKind::kI2}) {
      const PageFormat stored{kind, KvKind::kI2, 1, c.dim};
      std::vector<std::byte> base(stored.BaseBytes()), refine(stored.RefineBytes());
      ASSERT_TRUE(reference.codec
                      ->Encode(F16Page(c).data(), stored, base.data(),
                               refine.empty() ? nullptr : refine.data())
                      .ok());
      for (const bool as_i2 : {false, true}) {
        if (kind == KvKind::kI2 && !as_i2) continue;
        const CodeBits bits = as_i2 ? CodeBits::kI2 : CodeBits::kI4;
        const Integers cuda = OnCuda(c, stored, as_i2, base, refine);
        const int largest = *std::max_element(cuda.codes.begin(), cuda.codes.end());
        if (c.name.rfind("random", 0) == 0) {
          EXPECT_EQ(largest, 127) << c.name;
        }
        for (const char* name : {"scalar", "avx2", "avx512"}) {
          const absl::StatusOr<Isa> isa = ChooseIsa(name);
          if (!isa.ok()) continue;
          const AttentionKernels& kernels = *isa == Isa::kScalar ? kAttentionScalar
                                            : *isa == Isa::kAvx2 ? kAttentionAvx2
                                                                 : kAttentionAvx512;
          const Integers cpu =
              OnCpu(kernels, c, bits, base.data(), refine.empty() ? nullptr : refine.data());
          ASSERT_EQ(cpu.codes, cuda.codes) << c.name << ", " << name;
          ASSERT_EQ(cpu.dots, cuda.dots) << c.name << ", " << name;
          ++compared;
        }
      }
    }
  }
  std::printf("%d pages of integer scores compared with%s\n", compared, isas.c_str());
}

}  // namespace
}  // namespace strata
