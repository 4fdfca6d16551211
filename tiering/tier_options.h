#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cache/layout/geometry.h"
#include "cache/layout/page_format.h"
#include "tiering/kv_policy.h"

namespace strata {

// Kinds of K and V of one layer in one tier.
struct TensorKinds {
  KvKind k = KvKind::kF16;
  KvKind v = KvKind::kF16;
  friend bool operator==(const TensorKinds&, const TensorKinds&) = default;
};

// The formats of every tier, layer by layer. Hot is always F16. Cold must be readable from warm by
// dropping planes alone (ReadableAs), so that demotion warm -> cold does no arithmetic.
struct TierFormats {
  std::vector<TensorKinds> warm;  // [layers]
  std::vector<TensorKinds> cold;  // [layers]

  // The same kinds in every layer of a tier.
  static TierFormats Uniform(int32_t layers, TensorKinds warm, TensorKinds cold);
  // Lets the cold K of `count` layers have its warm kind: those with the largest errors of K,
  // [layers] (key_errors.h), or without any known the layers next to the ends, front and back in
  // turn. K, because most of what I2 costs is its: two bits more for it buy three times what they
  // buy for V.
  void KeepK(int32_t count, absl::Span<const float> k_errors);
};

struct TierOptions {
  KvGeometry geometry;
  TierFormats formats;
  uint64_t model_fingerprint = 0;  // identity of the weights; part of every cold record
  uint64_t basis_hash = 0;         // KvBasis::Hash()

  size_t hot_bytes = 0;      // hard caps, slots and metadata together, checked against the machine
  size_t warm_bytes = 0;     // (cgroup limit, RAM, free disk) before anything is allocated
  size_t cold_bytes = 0;     // 0: no cold tier
  size_t staging_bytes = 0;  // DRAM beside warm_bytes for the cold tier: pages on their way to
                             // attention, write buffers, bookkeeping of records
  std::string cold_path;     // file of the cold store; required when cold_bytes > 0

  int32_t piece_tokens = 256;         // prefill piece; a multiple of 64
  int32_t max_sequences = 16;         // admitted at once
  int32_t max_context = 0;            // tokens a sequence
  std::string io_engine = "auto";     // auto, io_uring or threads
  int32_t io_depth_max = 64;          // reads and writes in flight
  size_t disk_write_bytes_per_s = 0;  // 0: unlimited (M3)
  size_t cold_unit_bytes = 64 << 10;  // a cold read brings at least this, where a block has as much

  absl::Status Validate() const;
};

}  // namespace strata
