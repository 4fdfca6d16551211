#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/linear_table-inl.h"
#include "kernels/linear_ops.h"

namespace strata {

// Memory for packed matrices, cut from large slabs so that matrices smaller than a huge page lie on
// huge pages too. A slab is shared by its matrices and lives as long as the last one. One thread.
class WeightArena {
 public:
  struct Piece {
    std::shared_ptr<AlignedBuffer> slab;
    std::byte* data = nullptr;  // 64-byte aligned, zero-filled
  };
  // ResourceExhausted when the operating system refuses.
  absl::StatusOr<Piece> Allocate(size_t bytes);

 private:
  std::shared_ptr<AlignedBuffer> slab_;
  size_t used_ = 0;
};

// The outputs of one source within a matrix, packed by kPackedFormat of its type.
struct PackedSegment {
  WeightType type = WeightType::kF32;
  int32_t first_output = 0;
  int32_t outputs = 0;
  int32_t first_tile = 0;  // in the matrix; a segment starts a tile
  size_t tile_bytes = 0;
  std::byte* tiles = nullptr;

  int32_t tile_count() const { return (outputs + kTileOutputs - 1) / kTileOutputs; }
  bool plain() const { return kPackedFormat[static_cast<int>(type)].bits == 0; }
};

// A matrix as CpuLinear reads it. Immutable after Pack; any thread may read.
class PackedMatrix : public WeightMatrix {
 public:
  // The shape and the size that Pack would give them, without the bytes.
  static std::unique_ptr<PackedMatrix> Measure(absl::Span<const WeightSource> sources);
  // The sources must have passed ValidateSources.
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(absl::Span<const WeightSource> sources,
                                                            ThreadPool* pool, WeightArena* arena);

  int32_t out_features() const override { return out_features_; }
  int32_t in_features() const override { return in_features_; }
  size_t bytes() const override { return bytes_; }

  int32_t tile_count() const { return tile_count_; }
  absl::Span<const PackedSegment> segments() const { return segments_; }

  // The values of one output's weights, exactly as the type defines them.
  void DequantizeRow(int32_t output, float* out) const;

 private:
  int32_t out_features_ = 0;
  int32_t in_features_ = 0;
  int32_t tile_count_ = 0;
  size_t bytes_ = 0;
  std::vector<PackedSegment> segments_;
  WeightArena::Piece memory_;
};

}  // namespace strata
