#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/layout/page_format.h"

namespace strata {

// How a block lies in a record on disk. Layers are packed into groups of about `unit_bytes`, so
// that one read brings several pages: a read of a single small page costs the disk as much as one
// of 64 KiB. Groups start at multiples of 4 KiB (O_DIRECT) and are padded with zeros.
//   R1: groups partition the layers, in order. R2: groups are disjoint, 4 KiB-aligned and cover the
//   record. R3: a pure function of its arguments: it is part of the store's format.
class RecordLayout {
 public:
  static constexpr size_t kAlignment = 4096;
  static constexpr int32_t kGroupsMax = 256;  // what a record descriptor has room for

  struct Group {
    int32_t first_layer = 0;
    int32_t layers = 0;
    size_t offset = 0;  // in the record
    size_t bytes = 0;   // a multiple of kAlignment, padding included
  };

  RecordLayout() = default;
  RecordLayout(std::vector<PageFormat> formats, size_t unit_bytes);

  int32_t layers() const { return static_cast<int32_t>(formats_.size()); }
  const PageFormat& format(int32_t layer) const { return formats_[layer]; }

  int32_t groups() const { return static_cast<int32_t>(groups_.size()); }
  const Group& group(int32_t index) const { return groups_[index]; }
  int32_t group_of_layer(int32_t layer) const { return group_of_layer_[layer]; }
  // Offset of a layer's BASE in its group; its REFINE follows.
  size_t base_in_group(int32_t layer) const { return offset_in_group_[layer]; }
  size_t refine_in_group(int32_t layer) const {
    return offset_in_group_[layer] + formats_[layer].BaseBytes();
  }
  size_t largest_group_bytes() const { return largest_group_bytes_; }

  // Bytes of a record, padding included.
  size_t bytes() const { return bytes_; }

 private:
  void PackGroups(size_t unit_bytes);

  std::vector<PageFormat> formats_;
  std::vector<Group> groups_;
  std::vector<int32_t> group_of_layer_;
  std::vector<size_t> offset_in_group_;
  size_t largest_group_bytes_ = 0;
  size_t bytes_ = 0;
};

}  // namespace strata
