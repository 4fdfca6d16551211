#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/cpu/codec_kernels.h"

namespace strata {
namespace {

const CodecKernels& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kCodecScalar;
    case Isa::kAvx2:
      return kCodecAvx2;
    case Isa::kAvx512:
      return kCodecAvx512;
  }
  return kCodecScalar;
}

uint8_t* Bytes(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }
const Half* Halves(const std::byte* p) { return reinterpret_cast<const Half*>(p); }

// Says where the first value that is not finite is, tokens before channels; there is one.
absl::Status DescribeNonFinite(const std::byte* source, const PageFormat& f16) {
  for (int32_t h = 0; h < f16.kv_heads; ++h) {
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      for (int32_t c = 0; c < f16.head_dim; ++c) {
        const Half k = Halves(source + f16.KHead(h))[KF16Index(f16.head_dim, t, c)];
        const Half v = Halves(source + f16.VHead(h))[VF16Index(f16.head_dim, t, c)];
        if (HalfIsFinite(k) && HalfIsFinite(v)) continue;
        return absl::InvalidArgumentError(absl::StrCat("page value is not finite: tensor ",
                                                       HalfIsFinite(k) ? "V" : "K", ", head ", h,
                                                       ", token ", t, ", channel ", c));
      }
    }
  }
  return absl::OkStatus();
}

class CpuPageCodec final : public PageCodec {
 public:
  explicit CpuPageCodec(Isa isa) : kernels_(KernelsOf(isa)) {}

  absl::Status Encode(const std::byte* source, const PageFormat& target, std::byte* base,
                      std::byte* refine) const override;

 private:
  const CodecKernels& kernels_;
};

absl::Status CpuPageCodec::Encode(const std::byte* source, const PageFormat& target,
                                  std::byte* base, std::byte* refine) const {
  const PageFormat f16{KvKind::kF16, KvKind::kF16, target.kv_heads, target.head_dim};
  if (!kernels_.all_finite(Halves(source), f16.BaseBytes() / sizeof(Half))) {
    return DescribeNonFinite(source, f16);
  }
  EncodeArgs args{nullptr, target.head_dim, target.VGroup(), nullptr, nullptr};
  for (int32_t h = 0; h < target.kv_heads; ++h) {
    args.source = Halves(source + f16.KHead(h));
    args.base = Bytes(base + target.KHead(h));
    args.lo = target.k == KvKind::kI4 ? Bytes(refine + target.KRefine(h)) : nullptr;
    if (target.k == KvKind::kF16) {
      std::memcpy(args.base, args.source, f16.KHeadBytes());
    } else {
      kernels_.encode_k(args);
    }
    args.source = Halves(source + f16.VHead(h));
    args.base = Bytes(base + target.VHead(h));
    args.lo = target.v == KvKind::kI4 ? Bytes(refine + target.VRefine(h)) : nullptr;
    if (target.v == KvKind::kF16) {
      std::memcpy(args.base, args.source, f16.VHeadBytes());
    } else {
      kernels_.encode_v(args);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<PageCodec> MakeCpuPageCodec(Isa isa) { return std::make_unique<CpuPageCodec>(isa); }

}  // namespace strata
