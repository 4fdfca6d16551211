#include "kernels/page_codec.h"

#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "base/status_macros.h"

namespace strata {
namespace {

Half LoadHalf(const std::byte* array, int32_t index) {
  Half h;
  std::memcpy(&h, array + 2 * index, sizeof(h));
  return h;
}

// The 2-bit code at a place of a plane: `line` as page_format.h counts, `lane` the word, `element`
// (0..15) the reduction element 4 z + b.
int32_t PlaneCode(const std::byte* plane, int32_t line, int32_t lane, int32_t element) {
  uint32_t word;
  std::memcpy(&word, plane + 64 * line + 4 * lane, sizeof(word));
  return static_cast<int32_t>(word >> (8 * (element % 4) + 2 * (element / 4))) & 3;
}

float Dequantize(Half mn, Half s, int32_t hi, int32_t lo, KvKind read) {
  const float units =
      read == KvKind::kI4 ? static_cast<float>(4 * hi + lo) + 0.5f : static_cast<float>(4 * hi + 2);
  return HalfToFloat(mn) + HalfToFloat(s) * units;
}

// One head's tensor: where its BASE and REFINE bytes are and how many bits to read.
struct HeadBytes {
  const std::byte* base;
  const std::byte* lo;  // null unless read as I4
  KvKind read;
};

void DecodeKHead(const PageFormat& format, const HeadBytes& head, float* k) {
  const int32_t dim = format.head_dim;
  const std::byte* mn = head.base + format.PlaneBytes();
  const std::byte* s = mn + format.KParamBytes();
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    for (int32_t c = 0; c < dim; ++c) {
      float* x = &k[t * dim + c];
      if (head.read == KvKind::kF16) {
        *x = HalfToFloat(LoadHalf(head.base, KF16Index(dim, t, c)));
        continue;
      }
      const int32_t line = t / 16 * (dim / 16) + c / 16;
      const int32_t hi = PlaneCode(head.base, line, t % 16, c % 16);
      const int32_t lo = head.lo != nullptr ? PlaneCode(head.lo, line, t % 16, c % 16) : 0;
      *x = Dequantize(LoadHalf(mn, c), LoadHalf(s, c), hi, lo, head.read);
    }
  }
}

void DecodeVHead(const PageFormat& format, const HeadBytes& head, float* v) {
  const int32_t dim = format.head_dim;
  const std::byte* mn = head.base + format.PlaneBytes();
  const std::byte* s = mn + format.VParamBytes();
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    for (int32_t c = 0; c < dim; ++c) {
      float* x = &v[t * dim + c];
      if (head.read == KvKind::kF16) {
        *x = HalfToFloat(LoadHalf(head.base, VF16Index(dim, t, c)));
        continue;
      }
      const int32_t line = t / 16 * (dim / 16) + c / 16;
      const int32_t hi = PlaneCode(head.base, line, c % 16, t % 16);
      const int32_t lo = head.lo != nullptr ? PlaneCode(head.lo, line, c % 16, t % 16) : 0;
      const int32_t param = c / format.VGroup() * kBlockTokens + t;
      *x = Dequantize(LoadHalf(mn, param), LoadHalf(s, param), hi, lo, head.read);
    }
  }
}

}  // namespace

absl::Status PageCodec::EncodeAll(absl::Span<const PageEncode> pages) const {
  for (const PageEncode& page : pages) {
    STRATA_RETURN_IF_ERROR(Encode(page.source, page.target, page.base, page.refine));
  }
  return absl::OkStatus();
}

absl::Status PageCodec::Fetch(const std::byte* source, size_t bytes, std::byte* host) const {
  std::memcpy(host, source, bytes);
  return absl::OkStatus();
}

void PageCodec::DropPlanes(const PageFormat& from, const std::byte* base, const std::byte* refine,
                           const PageFormat& to, std::byte* to_base, std::byte* to_refine) {
  STRATA_CHECK(from.kv_heads == to.kv_heads && from.head_dim == to.head_dim);
  STRATA_CHECK(ReadableAs(from.k, to.k) && ReadableAs(from.v, to.v));
  // BASE has the same bytes whether or not the lo planes are kept.
  STRATA_CHECK(from.BaseBytes() == to.BaseBytes());
  std::memcpy(to_base, base, to.BaseBytes());
  const size_t planes = from.PlaneBytes() * from.kv_heads;
  if (to.k == KvKind::kI4) std::memcpy(to_refine + to.KRefine(0), refine + from.KRefine(0), planes);
  if (to.v == KvKind::kI4) std::memcpy(to_refine + to.VRefine(0), refine + from.VRefine(0), planes);
}

void PageCodec::Decode(const PageFormat& stored, KvKind read_k, KvKind read_v,
                       const std::byte* base, const std::byte* refine, float* k, float* v) {
  STRATA_CHECK(ReadableAs(stored.k, read_k) && ReadableAs(stored.v, read_v));
  const size_t head_values = size_t{kBlockTokens} * stored.head_dim;
  for (int32_t h = 0; h < stored.kv_heads; ++h) {
    const std::byte* k_lo = read_k == KvKind::kI4 ? refine + stored.KRefine(h) : nullptr;
    const std::byte* v_lo = read_v == KvKind::kI4 ? refine + stored.VRefine(h) : nullptr;
    DecodeKHead(stored, {base + stored.KHead(h), k_lo, read_k}, k + head_values * h);
    DecodeVHead(stored, {base + stored.VHead(h), v_lo, read_v}, v + head_values * h);
  }
}

}  // namespace strata
