#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cache/layout/page_format.h"

namespace strata::cuda {

// One page to encode. All pointers are read and written by the device: device memory or pinned,
// mapped host memory, at multiples of 64 bytes.
struct EncodePage {
  const std::byte* source = nullptr;  // F16/F16, all 64 tokens
  std::byte* base = nullptr;          // PageFormat::BaseBytes()
  std::byte* refine = nullptr;        // RefineBytes(); null where that is 0
  KvKind k = KvKind::kF16;
  KvKind v = KvKind::kF16;
};

// Where a page's first value that is not finite lies, in the order in which the CPU codec looks:
// heads, then tokens, then channels, K before V.
struct NonFinite {
  bool v = false;  // of V, not K
  int32_t head = 0;
  int32_t token = 0;
  int32_t channel = 0;
};

// What LaunchEncodePages leaves for a page whose values are all finite.
inline constexpr uint32_t kAllFinite = 0xffffffffu;

// Heads whose places fit the 32 bits of a report.
inline constexpr int32_t kEncodeHeadsMax = 1 << 16;

// The report of a page that is not kAllFinite: head << 15 | token << 9 | channel << 1 | v.
constexpr NonFinite UnpackNonFinite(uint32_t report) {
  return {(report & 1) != 0, static_cast<int32_t>(report >> 15),
          static_cast<int32_t>(report >> 9 & 63), static_cast<int32_t>(report >> 1 & 255)};
}

// Encodes `count` pages of `kv_heads` heads of `head_dim` channels, the bytes of PageCodec::Encode,
// written straight to where they stay, in stores of 16 bytes. The pages' kinds may differ, so the
// layers of a block go in one call.
//   pages    host memory, read before this returns
//   reports  device memory, [count]: kAllFinite or the place of the first value that is not finite
//            (NonFinite); the bytes of such a page are unspecified
// cudaErrorInvalidValue, with nothing launched, for a shape KvGeometry does not allow, more than
// kEncodeHeadsMax heads, an unknown kind, a null or misaligned pointer. Asynchronous on `stream`.
cudaError_t LaunchEncodePages(int32_t kv_heads, int32_t head_dim, const EncodePage* pages,
                              int32_t count, uint32_t* reports, cudaStream_t stream);

}  // namespace strata::cuda
