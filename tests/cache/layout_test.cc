#include <vector>

#include "cache/layout/block_layout.h"
#include "cache/layout/record_layout.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr PageFormat kK4V4{KvKind::kI4, KvKind::kI4, 3, 64};
constexpr PageFormat kK4V2{KvKind::kI4, KvKind::kI2, 3, 64};
constexpr PageFormat kK2V2{KvKind::kI2, KvKind::kI2, 3, 64};

TEST(BlockLayoutTest, RegionsAreDisjointAlignedAndCover) {
  const BlockLayout layout({kK4V4, kK4V2, kK2V2});
  size_t next = 0;
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(layout.base_offset(layer), next);
    EXPECT_EQ(layout.refine_offset(layer), next + layout.format(layer).BaseBytes());
    EXPECT_EQ(layout.base_offset(layer) % 64, 0u);
    EXPECT_EQ(layout.refine_offset(layer) % 64, 0u);
    next += layout.format(layer).Bytes();
  }
  EXPECT_EQ(layout.bytes(), next);
  std::vector<std::byte> slot(layout.bytes());
  EXPECT_EQ(layout.refine(slot.data(), 1), slot.data() + layout.refine_offset(1));
  EXPECT_EQ(layout.refine(slot.data(), 2), nullptr);
}

// R1 and R2 for one layout; returns how many groups it has.
int32_t CheckRecord(const RecordLayout& layout) {
  int32_t layer = 0;
  size_t offset = 0;
  for (int32_t i = 0; i < layout.groups(); ++i) {
    const RecordLayout::Group& group = layout.group(i);
    EXPECT_EQ(group.first_layer, layer);
    EXPECT_EQ(group.offset, offset);
    EXPECT_EQ(group.bytes % RecordLayout::kAlignment, 0u);
    EXPECT_LE(group.bytes, layout.largest_group_bytes());
    size_t inside = 0;
    for (int32_t j = 0; j < group.layers; ++j, ++layer) {
      EXPECT_EQ(layout.group_of_layer(layer), i);
      EXPECT_EQ(layout.base_in_group(layer), inside);
      inside += layout.format(layer).Bytes();
    }
    EXPECT_LE(inside, group.bytes);
    EXPECT_GT(inside + RecordLayout::kAlignment, group.bytes);
    offset += group.bytes;
  }
  EXPECT_EQ(layer, layout.layers());
  EXPECT_EQ(layout.bytes(), offset);
  return layout.groups();
}

std::vector<PageFormat> Layers(int32_t count, PageFormat format) {
  return std::vector<PageFormat>(count, format);
}

TEST(RecordLayoutTest, GroupsHoldAtLeastAUnit) {
  // 30 layers of 7,680 bytes: 230,400 are three whole units of 64 KiB.
  const RecordLayout layout(Layers(30, kK2V2), 64 << 10);
  EXPECT_EQ(CheckRecord(layout), 3);
  for (int32_t i = 0; i < 3; ++i) EXPECT_GE(layout.group(i).bytes, size_t{64} << 10);
  EXPECT_EQ(layout.largest_group_bytes(), 77824u);  // 10 layers: even
}

TEST(RecordLayoutTest, SmallBlocksAreOneGroup) {
  EXPECT_EQ(CheckRecord(RecordLayout(Layers(4, kK2V2), 64 << 10)), 1);
}

TEST(RecordLayoutTest, UnevenLayersStillPartition) {
  std::vector<PageFormat> kept = Layers(40, kK2V2);
  for (int32_t layer : {0, 1, 38, 39}) kept[layer] = kK4V4;
  for (size_t unit : {4096u, 10000u, 65536u, 200000u}) {
    const RecordLayout layout(kept, unit);
    EXPECT_GE(CheckRecord(layout), 1);
  }
  const RecordLayout many(Layers(512, kK2V2), 4096);
  EXPECT_EQ(CheckRecord(many), RecordLayout::kGroupsMax);
}

}  // namespace
}  // namespace strata
