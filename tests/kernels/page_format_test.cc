#include "cache/layout/page_format.h"

#include <cstring>
#include <vector>

#include "base/half.h"
#include "gtest/gtest.h"
#include "kernels/page_codec.h"

namespace strata {
namespace {

constexpr KvKind kKinds[] = {KvKind::kF16, KvKind::kI4, KvKind::kI2};

TEST(PageFormatTest, SizesAreThoseOfTheDocument) {
  const auto bytes = [](KvKind k, KvKind v) { return PageFormat{k, v, 8, 128}.Bytes(); };
  EXPECT_EQ(bytes(KvKind::kF16, KvKind::kF16), 262144u);
  EXPECT_EQ(bytes(KvKind::kI4, KvKind::kI4), 73728u);
  EXPECT_EQ(bytes(KvKind::kI4, KvKind::kI2), 57344u);
  EXPECT_EQ(bytes(KvKind::kI2, KvKind::kI2), 40960u);
}

TEST(PageFormatTest, VGroupIsTheLargestDivisorUpTo64) {
  for (int32_t dim = 16; dim <= 256; dim += 16) {
    int32_t expected = 0;
    for (int32_t g = 16; g <= 64; g += 16) {
      if (dim % g == 0) expected = g;
    }
    EXPECT_EQ((PageFormat{KvKind::kI4, KvKind::kI4, 1, dim}.VGroup()), expected) << dim;
  }
}

// F2. No supported shape needs padding; the codecs rely on it (they write planes and parameters,
// nothing else).
TEST(PageFormatTest, RegionsAreOrderedAlignedAndCoverThePageWithoutPadding) {
  for (int32_t dim = 16; dim <= 256; dim += 16) {
    for (KvKind k : kKinds) {
      for (KvKind v : kKinds) {
        const PageFormat f{k, v, 3, dim};
        size_t base = 0, refine = 0;
        const size_t k_bytes =
            k == KvKind::kF16 ? f.F16Bytes() : f.PlaneBytes() + 2 * f.KParamBytes();
        const size_t v_bytes =
            v == KvKind::kF16 ? f.F16Bytes() : f.PlaneBytes() + 2 * f.VParamBytes();
        for (int32_t h = 0; h < 3; ++h, base += k_bytes) EXPECT_EQ(f.KHead(h), base);
        for (int32_t h = 0; h < 3; ++h, base += v_bytes) EXPECT_EQ(f.VHead(h), base);
        EXPECT_EQ(f.BaseBytes(), base);
        if (k == KvKind::kI4) {
          for (int32_t h = 0; h < 3; ++h, refine += f.PlaneBytes()) EXPECT_EQ(f.KRefine(h), refine);
        }
        if (v == KvKind::kI4) {
          for (int32_t h = 0; h < 3; ++h, refine += f.PlaneBytes()) EXPECT_EQ(f.VRefine(h), refine);
        }
        EXPECT_EQ(f.RefineBytes(), refine);
        EXPECT_EQ(k_bytes % 64 + v_bytes % 64 + f.PlaneBytes() % 64, 0u);
      }
    }
  }
}

TEST(PageFormatTest, F16IndexesAreAPermutation) {
  for (int32_t dim : {16, 80, 128}) {
    std::vector<int> k(size_t{64} * dim), v(k.size());
    for (int32_t t = 0; t < 64; ++t) {
      for (int32_t c = 0; c < dim; ++c) {
        ++k[KF16Index(dim, t, c)];
        ++v[VF16Index(dim, t, c)];
      }
    }
    EXPECT_EQ(k, std::vector<int>(k.size(), 1));
    EXPECT_EQ(v, k);
  }
}

TEST(PageFormatTest, OnlyI4CanBeReadLower) {
  for (KvKind stored : kKinds) {
    for (KvKind read : kKinds) {
      const bool lower = stored == KvKind::kI4 && read == KvKind::kI2;
      EXPECT_EQ(ReadableAs(stored, read), stored == read || lower);
    }
  }
}

// One value, placed by hand where the comment of page_format.h says.
TEST(PageFormatTest, CodesLieWhereTheCommentSays) {
  const int32_t dim = 80;
  const PageFormat f{KvKind::kI4, KvKind::kI4, 2, dim};
  std::vector<std::byte> base(f.BaseBytes()), refine(f.RefineBytes());
  const Half one = FloatToHalf(1.0f);
  const auto put_half = [&](size_t at) { std::memcpy(&base[at], &one, 2); };
  const auto put_code = [](std::vector<std::byte>* bytes, size_t plane, int32_t line, int32_t word,
                           int32_t bit, uint32_t code) {
    const uint32_t w = code << bit;
    std::memcpy(&(*bytes)[plane + 64 * line + 4 * word], &w, 4);
  };
  // K: head 1, token 37 = 16*2+5, channel 55 = 16*3 + 4*1 + 3; code 0b1101.
  put_half(f.KHead(1) + 16 * dim + 2 * dim + 2 * 55);
  put_code(&base, f.KHead(1), 2 * 5 + 3, 5, 8 * 3 + 2 * 1, 3);
  put_code(&refine, f.KRefine(1), 2 * 5 + 3, 5, 8 * 3 + 2 * 1, 1);
  // V: head 0, token 62 = 16*3 + 4*3 + 2, channel 17 = 16*1 + 1 in group 1 of 5; code 0b0110.
  put_half(f.VHead(0) + 16 * dim + 2 * 5 * 64 + 2 * (1 * 64 + 62));
  put_code(&base, f.VHead(0), 3 * 5 + 1, 1, 8 * 2 + 2 * 3, 1);
  put_code(&refine, f.VRefine(0), 3 * 5 + 1, 1, 8 * 2 + 2 * 3, 2);
  std::vector<float> k(size_t{2} * 64 * dim), v(k.size());
  PageCodec::Decode(f, KvKind::kI4, KvKind::kI4, base.data(), refine.data(), k.data(), v.data());
  EXPECT_EQ(k[(64 + 37) * dim + 55], 13.5f);
  EXPECT_EQ(k[(64 + 36) * dim + 55], 0.5f);  // same channel, code 0
  EXPECT_EQ(k[(64 + 37) * dim + 54], 0.0f);  // another channel: s == 0
  EXPECT_EQ(v[62 * dim + 17], 6.5f);
  EXPECT_EQ(v[62 * dim + 18], 0.5f);
  PageCodec::Decode(f, KvKind::kI2, KvKind::kI2, base.data(), nullptr, k.data(), v.data());
  EXPECT_EQ(k[(64 + 37) * dim + 55], 14.0f);
  EXPECT_EQ(v[62 * dim + 17], 6.0f);
}

}  // namespace
}  // namespace strata
