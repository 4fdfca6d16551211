#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/page_codec.h"
#include "kernels/reference/attention_reference.h"
#include "tests/kernels/attention_test_util.h"

namespace strata {
namespace {

constexpr int32_t kHeads = 2;

struct NamedFormat {
  const char* name;
  KvKind k, v;
};
constexpr NamedFormat kFormats[] = {
    {"F16", KvKind::kF16, KvKind::kF16},   {"I4", KvKind::kI4, KvKind::kI4},
    {"I2", KvKind::kI2, KvKind::kI2},      {"K4V2", KvKind::kI4, KvKind::kI2},
    {"KF16V4", KvKind::kF16, KvKind::kI4}, {"K2VF16", KvKind::kI2, KvKind::kF16}};

PageFormat F16Format(int32_t dim) { return {KvKind::kF16, KvKind::kF16, kHeads, dim}; }

// Groups that break careless codecs; `i` counts the values of the page.
struct Content {
  const char* name;
  std::function<float(TestRandom*, int32_t i)> value;
};

std::vector<Content> Contents() {
  return {
      {"normal", [](TestRandom* r, int32_t) { return r->Normal(); }},
      {"constant", [](TestRandom*, int32_t) { return 3.14f; }},
      {"zeros of both signs",
       [](TestRandom* r, int32_t) { return (r->Next() & 1) != 0 ? -0.0f : 0.0f; }},
      {"subnormals",
       [](TestRandom* r, int32_t) {
         return static_cast<float>(r->Next() % 7) * 0x1p-24f - 0x1p-23f;
       }},
      {"largest of both signs",
       [](TestRandom* r, int32_t) { return (r->Next() & 1) != 0 ? 65504.0f : -65504.0f; }},
      // The range 65504 + 2^-24 does not fit binary32.
      {"range that binary32 rounds down",
       [](TestRandom* r, int32_t) { return (r->Next() & 1) != 0 ? 65504.0f : -0x1p-24f; }},
      {"an outlier",
       [](TestRandom* r, int32_t i) { return i % 61 == 0 ? 30000.0f : r->Normal() * 0.01f; }},
      {"far from zero", [](TestRandom* r, int32_t) { return 1000.0f + r->Normal(); }},
      {"wide exponents",
       [](TestRandom* r, int32_t) { return std::ldexp(r->Uniform(), int(r->Next() % 30) - 15); }},
  };
}

void Fill(const Content& content, uint32_t seed, std::byte* page, size_t bytes) {
  TestRandom random(seed);
  Half* halves = reinterpret_cast<Half*>(page);
  for (size_t i = 0; i < bytes / sizeof(Half); ++i) {
    halves[i] = FloatToHalf(content.value(&random, static_cast<int32_t>(i)));
  }
}

std::vector<std::byte> Encoded(const PageCodec& codec, const std::byte* source,
                               const PageFormat& format) {
  // Filled with ones: every byte must be written. Guarded: none past the end.
  GuardedBytes base(format.BaseBytes()), refine(format.RefineBytes());
  std::memset(base.data(), 0xff, base.size());
  std::memset(refine.data(), 0xff, refine.size());
  EXPECT_TRUE(codec.Encode(source, format, base.data(), refine.data()).ok());
  std::vector<std::byte> bytes(base.data(), base.data() + base.size());
  bytes.insert(bytes.end(), refine.data(), refine.data() + refine.size());
  return bytes;
}

uint64_t Fnv1a(const std::vector<std::byte>& bytes) {
  uint64_t hash = 14695981039346656037u;
  for (std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

class PageCodecTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = MakeKernels(GetParam(), 1);
    if (kernels_.codec == nullptr) GTEST_SKIP() << "this CPU lacks " << GetParam();
  }
  KernelsUnderTest kernels_;
};

INSTANTIATE_TEST_SUITE_P(All, PageCodecTest, testing::ValuesIn(kKernelNames),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(PageCodecTest, GivesTheBytesOfTheReference) {
  const std::unique_ptr<PageCodec> reference = MakeReferencePageCodec();
  for (int32_t dim : {16, 64, 80, 96, 112, 128, 144, 256}) {
    GuardedBytes source(F16Format(dim).BaseBytes());
    for (const Content& content : Contents()) {
      Fill(content, static_cast<uint32_t>(dim), source.data(), source.size());
      for (const NamedFormat& named : kFormats) {
        const PageFormat format{named.k, named.v, kHeads, dim};
        ASSERT_EQ(Encoded(*kernels_.codec, source.data(), format),
                  Encoded(*reference, source.data(), format))
            << named.name << " head dim " << dim << ", " << content.name;
      }
    }
  }
}

// The hashes were taken from the first version of the format; F3: a change of bytes is a new
// kPageFormatVersion and new hashes.
TEST_P(PageCodecTest, GivesTheGoldenBytes) {
  ASSERT_EQ(kPageFormatVersion, 1u);
  struct Golden {
    KvKind k, v;
    int32_t dim;
    uint64_t hash;
  };
  const Golden goldens[] = {
      {KvKind::kI4, KvKind::kI4, 64, 0xe072cbdadd4cf022},
      {KvKind::kI4, KvKind::kI4, 80, 0x1faae3fac5273e26},
      {KvKind::kI4, KvKind::kI4, 128, 0xe0c035970c1afc9d},
      {KvKind::kI2, KvKind::kI2, 64, 0x4c019faeaa72caa3},
      {KvKind::kI2, KvKind::kI2, 80, 0x64689c642ce02bda},
      {KvKind::kI2, KvKind::kI2, 128, 0x768fc3677b26db6},
      {KvKind::kI4, KvKind::kI2, 64, 0xa88a9d101bbc354d},
      {KvKind::kI4, KvKind::kI2, 80, 0xb3ac47a6ac5c70a6},
      {KvKind::kI4, KvKind::kI2, 128, 0x942be664424fec45},
  };
  for (const Golden& golden : goldens) {
    GuardedBytes source(F16Format(golden.dim).BaseBytes());
    Fill(Contents().front(), 7, source.data(), source.size());
    const PageFormat format{golden.k, golden.v, kHeads, golden.dim};
    EXPECT_EQ(Fnv1a(Encoded(*kernels_.codec, source.data(), format)), golden.hash)
        << "kinds " << int(golden.k) << " " << int(golden.v) << " head dim " << golden.dim;
  }
}

TEST_P(PageCodecTest, RefusesWhatIsNotFinite) {
  const int32_t dim = 80;
  const PageFormat f16 = F16Format(dim);
  const PageFormat format{KvKind::kI4, KvKind::kI4, kHeads, dim};
  GuardedBytes base(format.BaseBytes()), refine(format.RefineBytes());
  for (const Half bad : {Half{0x7c00}, Half{0xfc00}, Half{0x7e00}, Half{0x7c01}}) {
    GuardedBytes source(f16.BaseBytes());
    Fill(Contents().front(), 3, source.data(), source.size());
    Half* k = reinterpret_cast<Half*>(source.data() + f16.KHead(1));
    Half* v = reinterpret_cast<Half*>(source.data() + f16.VHead(1));
    const Half good = k[KF16Index(dim, 63, 79)];
    k[KF16Index(dim, 63, 79)] = bad;
    absl::Status status = kernels_.codec->Encode(source.data(), format, base.data(), refine.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("tensor K, head 1, token 63, channel 79"));
    k[KF16Index(dim, 63, 79)] = good;
    v[VF16Index(dim, 5, 17)] = bad;
    status = kernels_.codec->Encode(source.data(), format, base.data(), refine.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("tensor V, head 1, token 5, channel 17"));
  }
}

// Where a tensor's parameters lie and which group a value is of.
struct Group {
  float mn, s;
};
Group KGroup(const PageFormat& f, const std::byte* base, int32_t head, int32_t channel) {
  const Half* mn = reinterpret_cast<const Half*>(base + f.KHead(head) + f.PlaneBytes());
  return {HalfToFloat(mn[channel]), HalfToFloat(mn[f.head_dim + channel])};
}
Group VGroupOf(const PageFormat& f, const std::byte* base, int32_t head, int32_t token,
               int32_t channel) {
  const Half* mn = reinterpret_cast<const Half*>(base + f.VHead(head) + f.PlaneBytes());
  const int32_t at = channel / f.VGroup() * kBlockTokens + token;
  return {HalfToFloat(mn[at]), HalfToFloat(mn[f.VGroups() * kBlockTokens + at])};
}

// Each value lies in [mn, mn + 16 s], exactly; an I4 value is read back to within s / 2 and an I2
// value to within 2 s of it. The code divides in binary32 (relative error 2^-23 of at most 16
// steps) and Decode adds in binary32 (2^-24 of the value): that is the slack.
void ExpectWithinCell(const Group& group, float x, float i4, float i2, const std::string& where) {
  const double mn = group.mn, s = group.s;
  ASSERT_TRUE(std::isfinite(group.mn) && std::isfinite(group.s)) << where;
  ASSERT_LE(mn, x) << where;
  ASSERT_GE(mn + 16 * s, x) << where;
  const double slack = 16 * s * 0x1p-22 + (std::abs(mn) + 16 * s) * 0x1p-23;
  ASSERT_LE(std::abs(i4 - x), s / 2 + slack) << where;
  ASSERT_LE(std::abs(i2 - x), 2 * s + slack) << where;
  if (group.s == 0) {
    ASSERT_EQ(i4, x) << where;
  }
}

TEST(PageFormatBoundsTest, ParametersBoundEveryValueAndCodesAreNear) {
  const std::unique_ptr<PageCodec> codec = MakeReferencePageCodec();
  for (int32_t dim : {64, 80, 96, 128}) {
    const PageFormat f16 = F16Format(dim);
    const PageFormat format{KvKind::kI4, KvKind::kI4, kHeads, dim};
    GuardedBytes source(f16.BaseBytes());
    const size_t values = size_t{kHeads} * kBlockTokens * dim;
    std::vector<float> x_k(values), x_v(values), k4(values), v4(values), k2(values), v2(values);
    for (const Content& content : Contents()) {
      Fill(content, 11, source.data(), source.size());
      const std::vector<std::byte> bytes = Encoded(*codec, source.data(), format);
      const std::byte* refine = bytes.data() + format.BaseBytes();
      PageCodec::Decode(f16, KvKind::kF16, KvKind::kF16, source.data(), nullptr, x_k.data(),
                        x_v.data());
      PageCodec::Decode(format, KvKind::kI4, KvKind::kI4, bytes.data(), refine, k4.data(),
                        v4.data());
      PageCodec::Decode(format, KvKind::kI2, KvKind::kI2, bytes.data(), nullptr, k2.data(),
                        v2.data());
      for (size_t i = 0; i < values; ++i) {
        const int32_t c = static_cast<int32_t>(i % dim);
        const int32_t t = static_cast<int32_t>(i / dim % kBlockTokens);
        const int32_t h = static_cast<int32_t>(i / dim / kBlockTokens);
        const std::string where = std::string(content.name) + " value " + std::to_string(i);
        ExpectWithinCell(KGroup(format, bytes.data(), h, c), x_k[i], k4[i], k2[i], "K " + where);
        ExpectWithinCell(VGroupOf(format, bytes.data(), h, t, c), x_v[i], v4[i], v2[i],
                         "V " + where);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(PageCodecDropPlanesTest, EqualsEncodingTheLowerFormat) {
  const std::unique_ptr<PageCodec> codec = MakeReferencePageCodec();
  const int32_t dim = 96;
  GuardedBytes source(F16Format(dim).BaseBytes());
  Fill(Contents().front(), 5, source.data(), source.size());
  for (const NamedFormat& from : kFormats) {
    for (const NamedFormat& to : kFormats) {
      if (!ReadableAs(from.k, to.k) || !ReadableAs(from.v, to.v)) continue;
      const PageFormat high{from.k, from.v, kHeads, dim};
      const PageFormat low{to.k, to.v, kHeads, dim};
      const std::vector<std::byte> bytes = Encoded(*codec, source.data(), high);
      GuardedBytes base(low.BaseBytes()), refine(low.RefineBytes());
      PageCodec::DropPlanes(high, bytes.data(), bytes.data() + high.BaseBytes(), low, base.data(),
                            refine.data());
      std::vector<std::byte> dropped(base.data(), base.data() + base.size());
      dropped.insert(dropped.end(), refine.data(), refine.data() + refine.size());
      EXPECT_EQ(dropped, Encoded(*codec, source.data(), low)) << from.name << " to " << to.name;
    }
  }
}

TEST(PageCodecDeathTest, DropPlanesCannotRaisePrecision) {
  const PageFormat low{KvKind::kI2, KvKind::kI2, 1, 64};
  const PageFormat high{KvKind::kI4, KvKind::kI2, 1, 64};
  std::vector<std::byte> bytes(high.Bytes());
  EXPECT_DEATH(PageCodec::DropPlanes(low, bytes.data(), nullptr, high, bytes.data(), bytes.data()),
               "check failed");
}

}  // namespace
}  // namespace strata
