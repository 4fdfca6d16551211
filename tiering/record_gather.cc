#include "tiering/record_gather.h"

#include "kernels/page_codec.h"

namespace strata {

void GatherRecord(const BlockLayout& warm, const RecordLayout& layout, const std::byte* slot,
                  std::byte* record) {
  for (int32_t layer = 0; layer < layout.layers(); ++layer) {
    std::byte* group = record + layout.group(layout.group_of_layer(layer)).offset;
    PageCodec::DropPlanes(warm.format(layer), warm.base(slot, layer), warm.refine(slot, layer),
                          layout.format(layer), group + layout.base_in_group(layer),
                          group + layout.refine_in_group(layer));
  }
}

}  // namespace strata
