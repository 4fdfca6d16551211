#include "cache/layout/record_layout.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace strata {
namespace {

size_t RoundUp(size_t bytes) {
  return (bytes + RecordLayout::kAlignment - 1) / RecordLayout::kAlignment *
         RecordLayout::kAlignment;
}

}  // namespace

RecordLayout::RecordLayout(std::vector<PageFormat> formats, size_t unit_bytes)
    : formats_(std::move(formats)),
      group_of_layer_(formats_.size()),
      offset_in_group_(formats_.size()) {
  PackGroups(unit_bytes);
}

// As many groups as whole units fit, of nearly equal bytes: staging slots have the size of the
// largest group, so an uneven packing would waste memory.
void RecordLayout::PackGroups(size_t unit_bytes) {
  size_t total = 0;
  for (const PageFormat& format : formats_) total += format.Bytes();
  const size_t most = std::min<size_t>(formats_.size(), kGroupsMax);
  const size_t count = std::clamp<size_t>(total / std::max<size_t>(unit_bytes, 1), 1, most);
  size_t packed = 0;
  for (int32_t layer = 0; layer < layers(); ++layer) {
    const size_t page = formats_[layer].Bytes();
    // The group in whose share of the bytes the middle of this page falls.
    const size_t share = std::min((packed + page / 2) * count / total, count - 1);
    if (groups_.empty() || share > static_cast<size_t>(groups_.size()) - 1) {
      groups_.push_back({layer, 0, 0, 0});
    }
    Group& group = groups_.back();
    group_of_layer_[layer] = groups() - 1;
    offset_in_group_[layer] = group.bytes;
    ++group.layers;
    group.bytes += page;
    packed += page;
  }
  for (Group& group : groups_) {
    group.offset = bytes_;
    group.bytes = RoundUp(group.bytes);
    bytes_ += group.bytes;
    largest_group_bytes_ = std::max(largest_group_bytes_, group.bytes);
  }
}

}  // namespace strata
