#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/reference/attention_reference.h"

namespace strata {
namespace {

// The parameters of one group and what they make of a value; the rounding of every step is the
// format's (page_format.h), so the other codecs must do the same operations in binary32.
struct GroupParams {
  Half mn = 0;
  Half s = 0;

  GroupParams(float min, float max) {
    mn = FloatToHalfDown(min + 0.0f);  // + 0: a group of zeros of both signs starts at +0
    // Exact in double, where binary32 could round the range down and lose the bound
    // mn + 16 s >= max.
    const double step =
        (static_cast<double>(max) - static_cast<double>(HalfToFloat(mn))) / 16 + 0.0;
    s = FloatToHalfUp(static_cast<float>(step));
    if (static_cast<double>(HalfToFloat(s)) < step) s = HalfNextUp(s);
  }

  uint32_t Code(float x) const {
    if (HalfToFloat(s) == 0.0f) return 0;
    const float steps = (x - HalfToFloat(mn)) / HalfToFloat(s);
    return std::min(15u, static_cast<uint32_t>(steps));
  }
};

void StoreHalf(std::byte* array, int32_t index, Half h) {
  std::memcpy(array + 2 * index, &h, sizeof(h));
}

// Puts a 2-bit code where page_format.h says; the plane must have been cleared.
void PutPlaneCode(std::byte* plane, int32_t line, int32_t lane, int32_t element, uint32_t code) {
  uint32_t word;
  std::memcpy(&word, plane + 64 * line + 4 * lane, sizeof(word));
  word |= code << (8 * (element % 4) + 2 * (element / 4));
  std::memcpy(plane + 64 * line + 4 * lane, &word, sizeof(word));
}

class ReferencePageCodec final : public PageCodec {
 public:
  absl::Status Encode(const std::byte* source, const PageFormat& target, std::byte* base,
                      std::byte* refine) const override;

 private:
  static absl::Status CheckFinite(const std::byte* source, const PageFormat& f16);
  static void EncodeKHead(const Half* k, const PageFormat& target, std::byte* base, std::byte* lo);
  static void EncodeVHead(const Half* v, const PageFormat& target, std::byte* base, std::byte* lo);
};

absl::Status ReferencePageCodec::CheckFinite(const std::byte* source, const PageFormat& f16) {
  const int32_t dim = f16.head_dim;
  for (int32_t h = 0; h < f16.kv_heads; ++h) {
    const Half* k = reinterpret_cast<const Half*>(source + f16.KHead(h));
    const Half* v = reinterpret_cast<const Half*>(source + f16.VHead(h));
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      for (int32_t c = 0; c < dim; ++c) {
        const bool k_finite = HalfIsFinite(k[KF16Index(dim, t, c)]);
        if (k_finite && HalfIsFinite(v[VF16Index(dim, t, c)])) continue;
        return absl::InvalidArgumentError(absl::StrCat("page value is not finite: tensor ",
                                                       k_finite ? "V" : "K", ", head ", h,
                                                       ", token ", t, ", channel ", c));
      }
    }
  }
  return absl::OkStatus();
}

void ReferencePageCodec::EncodeKHead(const Half* k, const PageFormat& target, std::byte* base,
                                     std::byte* lo) {
  const int32_t dim = target.head_dim;
  std::byte* mn = base + target.PlaneBytes();
  std::byte* s = mn + target.KParamBytes();
  for (int32_t c = 0; c < dim; ++c) {
    float min = HalfToFloat(k[KF16Index(dim, 0, c)]);
    float max = min;
    for (int32_t t = 1; t < kBlockTokens; ++t) {
      min = std::min(min, HalfToFloat(k[KF16Index(dim, t, c)]));
      max = std::max(max, HalfToFloat(k[KF16Index(dim, t, c)]));
    }
    const GroupParams params(min, max);
    StoreHalf(mn, c, params.mn);
    StoreHalf(s, c, params.s);
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const uint32_t code = params.Code(HalfToFloat(k[KF16Index(dim, t, c)]));
      const int32_t line = t / 16 * (dim / 16) + c / 16;
      PutPlaneCode(base, line, t % 16, c % 16, code >> 2);
      if (lo != nullptr) PutPlaneCode(lo, line, t % 16, c % 16, code & 3);
    }
  }
}

void ReferencePageCodec::EncodeVHead(const Half* v, const PageFormat& target, std::byte* base,
                                     std::byte* lo) {
  const int32_t dim = target.head_dim;
  const int32_t group = target.VGroup();
  std::byte* mn = base + target.PlaneBytes();
  std::byte* s = mn + target.VParamBytes();
  for (int32_t g = 0; g < target.VGroups(); ++g) {
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const Half* values = v + VF16Index(dim, t, g * group);
      float min = HalfToFloat(values[0]);
      float max = min;
      for (int32_t i = 1; i < group; ++i) {
        min = std::min(min, HalfToFloat(values[i]));
        max = std::max(max, HalfToFloat(values[i]));
      }
      const GroupParams params(min, max);
      StoreHalf(mn, g * kBlockTokens + t, params.mn);
      StoreHalf(s, g * kBlockTokens + t, params.s);
      for (int32_t i = 0; i < group; ++i) {
        const uint32_t code = params.Code(HalfToFloat(values[i]));
        const int32_t c = g * group + i;
        const int32_t line = t / 16 * (dim / 16) + c / 16;
        PutPlaneCode(base, line, c % 16, t % 16, code >> 2);
        if (lo != nullptr) PutPlaneCode(lo, line, c % 16, t % 16, code & 3);
      }
    }
  }
}

absl::Status ReferencePageCodec::Encode(const std::byte* source, const PageFormat& target,
                                        std::byte* base, std::byte* refine) const {
  const PageFormat f16{KvKind::kF16, KvKind::kF16, target.kv_heads, target.head_dim};
  if (absl::Status status = CheckFinite(source, f16); !status.ok()) return status;
  std::memset(base, 0, target.BaseBytes());
  if (target.RefineBytes() > 0) std::memset(refine, 0, target.RefineBytes());
  for (int32_t h = 0; h < target.kv_heads; ++h) {
    const std::byte* k = source + f16.KHead(h);
    const std::byte* v = source + f16.VHead(h);
    if (target.k == KvKind::kF16) {
      std::memcpy(base + target.KHead(h), k, f16.KHeadBytes());
    } else {
      EncodeKHead(reinterpret_cast<const Half*>(k), target, base + target.KHead(h),
                  target.k == KvKind::kI4 ? refine + target.KRefine(h) : nullptr);
    }
    if (target.v == KvKind::kF16) {
      std::memcpy(base + target.VHead(h), v, f16.VHeadBytes());
    } else {
      EncodeVHead(reinterpret_cast<const Half*>(v), target, base + target.VHead(h),
                  target.v == KvKind::kI4 ? refine + target.VRefine(h) : nullptr);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<PageCodec> MakeReferencePageCodec() {
  return std::make_unique<ReferencePageCodec>();
}

}  // namespace strata
