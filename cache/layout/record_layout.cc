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

RecordLayout::RecordLayout(const std::vector<PageFormat>& stored, std::vector<PageFormat> kept,
                           size_t unit_bytes, bool keep_refine)
    : formats_(std::move(kept)),
      group_of_layer_(formats_.size()),
      offset_in_group_(formats_.size()),
      kept_refine_bytes_(formats_.size(), 0),
      kept_refine_offset_(formats_.size(), 0) {
  STRATA_CHECK(stored.size() == formats_.size());
  PackGroups(unit_bytes);
  if (keep_refine) PackRefine(stored);
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

void RecordLayout::PackRefine(const std::vector<PageFormat>& stored) {
  size_t offset = 0;
  for (int32_t layer = 0; layer < layers(); ++layer) {
    if (stored[layer].RefineBytes() == formats_[layer].RefineBytes()) continue;
    kept_refine_bytes_[layer] = stored[layer].RefineBytes();
    kept_refine_offset_[layer] = offset;
    offset += kept_refine_bytes_[layer];
  }
  refine_group_ = {0, layers(), bytes_, RoundUp(offset)};
  bytes_ += refine_group_.bytes;
}

}  // namespace strata
