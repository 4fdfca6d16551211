#include "kernels/cpu/weights_packed.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cpu/weights_codes.h"

namespace strata {
namespace {

constexpr size_t kSlabBytes = size_t{32} << 20;

size_t RoundUp64(size_t n) { return (n + 63) / 64 * 64; }

void PackTile(const WeightSource& source, const PackedSegment& segment, int32_t tile) {
  const WeightTypeInfo& info = InfoOf(source.type);
  const size_t row_bytes = RowBytes(source.type, source.in_features);
  const int32_t first = tile * kTileOutputs;
  const int32_t lanes = std::min(kTileOutputs, source.out_features - first);
  for (int32_t index = 0; index < source.in_features / info.block_values; ++index) {
    for (int32_t lane = 0; lane < lanes; ++lane) {
      const std::byte* block =
          source.data + row_bytes * (first + lane) + size_t{1} * info.block_bytes * index;
      PackBlock(source.type, block, index, lane, segment.tiles + segment.tile_bytes * tile);
    }
  }
}

}  // namespace

absl::StatusOr<WeightArena::Piece> WeightArena::Allocate(size_t bytes) {
  if (bytes > kSlabBytes / 2) {
    STRATA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(bytes));
    auto own = std::make_shared<AlignedBuffer>(std::move(buffer));
    return Piece{own, own->data()};
  }
  if (slab_ == nullptr || kSlabBytes - used_ < bytes) {
    STRATA_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::Allocate(kSlabBytes));
    slab_ = std::make_shared<AlignedBuffer>(std::move(buffer));
    used_ = 0;
  }
  std::byte* data = slab_->data() + used_;
  used_ += RoundUp64(bytes);
  return Piece{slab_, data};
}

std::unique_ptr<PackedMatrix> PackedMatrix::Measure(absl::Span<const WeightSource> sources) {
  auto matrix = std::make_unique<PackedMatrix>();
  matrix->in_features_ = sources[0].in_features;
  for (const WeightSource& source : sources) {
    PackedSegment segment;
    segment.type = source.type;
    segment.first_output = matrix->out_features_;
    segment.outputs = source.out_features;
    segment.first_tile = matrix->tile_count_;
    segment.tile_bytes = RoundUp64(TileBytes(source.type, source.in_features));
    matrix->segments_.push_back(segment);
    matrix->out_features_ += segment.outputs;
    matrix->tile_count_ += segment.tile_count();
    matrix->bytes_ += segment.tile_bytes * segment.tile_count();
  }
  return matrix;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackedMatrix::Pack(
    absl::Span<const WeightSource> sources, ThreadPool* pool, WeightArena* arena) {
  std::unique_ptr<PackedMatrix> matrix = Measure(sources);
  STRATA_ASSIGN_OR_RETURN(matrix->memory_, arena->Allocate(matrix->bytes_));
  std::byte* next = matrix->memory_.data;
  for (size_t i = 0; i < sources.size(); ++i) {
    PackedSegment& segment = matrix->segments_[i];
    segment.tiles = next;
    next += segment.tile_bytes * segment.tile_count();
    pool->ParallelFor(segment.tile_count(), [&](int64_t tile, int) {
      PackTile(sources[i], segment, static_cast<int32_t>(tile));
    });
  }
  return matrix;
}

void PackedMatrix::DequantizeRow(int32_t output, float* out) const {
  STRATA_CHECK(output >= 0 && output < out_features_);
  const auto next =
      std::upper_bound(segments_.begin(), segments_.end(), output,
                       [](int32_t o, const PackedSegment& s) { return o < s.first_output; });
  const PackedSegment& segment = *(next - 1);
  const int32_t row = output - segment.first_output;
  const std::byte* tile = segment.tiles + segment.tile_bytes * (row / kTileOutputs);
  const int32_t block = InfoOf(segment.type).block_values;
  for (int32_t i = 0; i < in_features_; i += block) {
    UnpackBlock(segment.type, tile, i / block, row % kTileOutputs, out + i);
  }
}

}  // namespace strata
