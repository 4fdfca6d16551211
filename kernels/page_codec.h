#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cache/layout/page_format.h"

namespace strata {

// One page to encode: F16 bytes of the device, `base` and `refine` in pinned or host memory.
struct PageEncode {
  const std::byte* source = nullptr;
  PageFormat target;
  std::byte* base = nullptr;
  std::byte* refine = nullptr;
};

// Converts whole pages between formats (docs/PAGE_FORMAT.md). Stateless; any thread. Every backend
// gives the same bytes. F16 sources lie in device memory (device_memory.h) and are no longer
// written by anyone; everything else is host or pinned memory, complete when a call returns.
class PageCodec {
 public:
  virtual ~PageCodec() = default;

  // Encodes the F16 page at `source` (format F16/F16, all 64 tokens) as `target`, writing all of
  // target.BaseBytes() and target.RefineBytes(). A tensor whose target kind is F16 is copied.
  // A value that is not finite: InvalidArgument naming tensor, head, token and channel; the output
  // is then unspecified. `refine` may be null when target.RefineBytes() is 0.
  virtual absl::Status Encode(const std::byte* source, const PageFormat& target, std::byte* base,
                              std::byte* refine) const = 0;

  // Encodes all pages, in any order; the first error of Encode, all output then unspecified.
  virtual absl::Status EncodeAll(absl::Span<const PageEncode> pages) const;

  // Copies bytes of an F16 page to the host.
  virtual absl::Status Fetch(const std::byte* source, size_t bytes, std::byte* host) const;

  // Copies a page stored as `from` to the lower format `to` by dropping planes: no arithmetic, no
  // second rounding (D6). CHECKs that both tensors are ReadableAs.
  static void DropPlanes(const PageFormat& from, const std::byte* base, const std::byte* refine,
                         const PageFormat& to, std::byte* to_base, std::byte* to_refine);

  // Reads a page back as floats in the stored basis: k and v are [kv_heads][64][head_dim]. Used by
  // tests, error sampling and tools; not a serving path.
  static void Decode(const PageFormat& stored, KvKind read_k, KvKind read_v, const std::byte* base,
                     const std::byte* refine, float* k, float* v);
};

}  // namespace strata
