#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/layout/geometry.h"
#include "cache/layout/page_format.h"

namespace strata {

// How a block lies in one slot of a DRAM tier: layer after layer, BASE then REFINE, every region at
// a multiple of 64 bytes (their sizes are such multiples). Immutable.
class BlockLayout {
 public:
  BlockLayout() = default;
  explicit BlockLayout(std::vector<PageFormat> formats) : formats_(std::move(formats)) {
    offsets_.reserve(formats_.size());
    for (const PageFormat& format : formats_) {
      offsets_.push_back(bytes_);
      bytes_ += format.Bytes();
    }
  }

  int32_t layers() const { return static_cast<int32_t>(formats_.size()); }
  const PageFormat& format(int32_t layer) const { return formats_[layer]; }
  size_t base_offset(int32_t layer) const { return offsets_[layer]; }
  size_t refine_offset(int32_t layer) const {
    return offsets_[layer] + formats_[layer].BaseBytes();
  }
  // Bytes of a slot.
  size_t bytes() const { return bytes_; }

  const std::byte* base(const std::byte* slot, int32_t layer) const {
    return slot + base_offset(layer);
  }
  // Null when the layer's format has no REFINE region.
  const std::byte* refine(const std::byte* slot, int32_t layer) const {
    return formats_[layer].RefineBytes() == 0 ? nullptr : slot + refine_offset(layer);
  }

 private:
  std::vector<PageFormat> formats_;
  std::vector<size_t> offsets_;
  size_t bytes_ = 0;
};

}  // namespace strata
