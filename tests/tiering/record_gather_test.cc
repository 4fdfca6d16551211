#include "tiering/record_gather.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/page_codec.h"

namespace strata {
namespace {

// Random bytes in a warm slot: the record must hold exactly its planes, in the record's formats,
// and zeros between.
TEST(RecordGatherTest, HoldsThePlanesOfItsFormats) {
  const PageFormat i4{KvKind::kI4, KvKind::kI4, 2, 64};
  const PageFormat k4v2{KvKind::kI4, KvKind::kI2, 2, 64};
  const PageFormat i2{KvKind::kI2, KvKind::kI2, 2, 64};
  const std::vector<PageFormat> stored(5, i4);
  const BlockLayout warm(stored);
  const RecordLayout layout({i4, i2, k4v2, i2, i4}, 8192);
  ASSERT_GT(layout.groups(), 1);
  std::vector<std::byte> slot(warm.bytes());
  std::mt19937 random(3);
  for (std::byte& byte : slot) byte = static_cast<std::byte>(random());
  std::vector<std::byte> record(layout.bytes());
  GatherRecord(warm, layout, slot.data(), record.data());

  std::vector<std::byte> expected(layout.bytes());
  for (int32_t layer = 0; layer < 5; ++layer) {
    std::byte* group = expected.data() + layout.group(layout.group_of_layer(layer)).offset;
    PageCodec::DropPlanes(i4, warm.base(slot.data(), layer), warm.refine(slot.data(), layer),
                          layout.format(layer), group + layout.base_in_group(layer),
                          group + layout.refine_in_group(layer));
  }
  EXPECT_TRUE(record == expected);
}

}  // namespace
}  // namespace strata
