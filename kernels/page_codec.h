#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "cache/layout/page_format.h"

namespace strata {

// Converts whole pages between formats (docs/PAGE_FORMAT.md). Stateless; any thread. Every backend
// gives the same bytes.
class PageCodec {
 public:
  virtual ~PageCodec() = default;

  // Encodes the F16 page at `source` (format F16/F16, all 64 tokens) as `target`, writing all of
  // target.BaseBytes() and target.RefineBytes(). A tensor whose target kind is F16 is copied.
  // A value that is not finite: InvalidArgument naming tensor, head, token and channel; the output
  // is then unspecified. `refine` may be null when target.RefineBytes() is 0.
  virtual absl::Status Encode(const std::byte* source, const PageFormat& target, std::byte* base,
                              std::byte* refine) const = 0;

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
