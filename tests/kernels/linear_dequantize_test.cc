#include "kernels/reference/linear_dequantize.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/linear_testing.h"

namespace strata {
namespace {

using testing::kAllWeightTypes;

std::vector<char> ReadGolden(WeightType type) {
  std::ifstream in(std::string("tests/kernels/golden/") + InfoOf(type).name + ".bin",
                   std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// golden/make_dequantize.py: blocks, then the values an independent implementation reads. Equal to
// the bit: both form the same products in the same order.
TEST(LinearDequantizeTest, EveryTypeMatchesGoldenValues) {
  for (WeightType type : kAllWeightTypes) {
    SCOPED_TRACE(InfoOf(type).name);
    const WeightTypeInfo& info = InfoOf(type);
    const std::vector<char> golden = ReadGolden(type);
    const size_t unit = info.block_bytes + sizeof(float) * info.block_values;
    ASSERT_GT(golden.size(), 0u);
    ASSERT_EQ(golden.size() % unit, 0u);
    const size_t blocks = golden.size() / unit;
    std::vector<float> expected(blocks * info.block_values), actual(expected.size());
    std::memcpy(expected.data(), golden.data() + blocks * info.block_bytes,
                expected.size() * sizeof(float));
    DequantizeRow(type, reinterpret_cast<const std::byte*>(golden.data()),
                  static_cast<int32_t>(actual.size()), actual.data());
    for (size_t i = 0; i < actual.size(); ++i) ASSERT_EQ(actual[i], expected[i]) << i;
  }
}

// The packed form loses nothing: rows read back from it equal the file's to the bit, whatever lane,
// tile and segment they lie in.
TEST(LinearDequantizeTest, EmbedRowsReadsThePackedFormExactly) {
  ThreadPool pool(2);
  for (WeightType type : kAllWeightTypes) {
    SCOPED_TRACE(InfoOf(type).name);
    const int32_t in = testing::IsPlain(type) ? 37 : 2 * InfoOf(type).block_values;
    const auto first = testing::MakeWeights(type, 19, in, 1);
    const auto second = testing::MakeWeights(WeightType::kF32, 3, in, 2);
    const auto third = testing::MakeWeights(type, 33, in, 3);
    const WeightSource sources[] = {first.source, second.source, third.source};
    const auto linear = MakeCpuLinear(Isa::kScalar, &pool);
    const auto matrix = linear->Prepare(sources);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_EQ((*matrix)->out_features(), 55);

    std::vector<int32_t> ids;
    for (int32_t i = 54; i >= 0; --i) ids.push_back(i);
    std::vector<float> actual(ids.size() * in), expected(in);
    linear->EmbedRows(**matrix, ids, actual.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      int32_t row = ids[i];
      const WeightSource* source = sources;
      while (row >= source->out_features) row -= source++->out_features;
      DequantizeRow(source->type, source->data + RowBytes(source->type, in) * row, in,
                    expected.data());
      for (int32_t c = 0; c < in; ++c) {
        ASSERT_EQ(actual[i * in + c], expected[c]) << ids[i] << " " << c;
      }
    }
  }
}

TEST(LinearPrepareTest, PackedFormStaysWithinItsShareOfTheFile) {
  ThreadPool pool(2);
  for (WeightType type : kAllWeightTypes) {
    const auto weights = testing::MakeWeights(type, 64, 512, 1);
    const auto matrix = MakeCpuLinear(Isa::kScalar, &pool)->Prepare({{weights.source}});
    ASSERT_TRUE(matrix.ok());
    // 512 inputs hide no padding: parameters are rounded to 64 bytes a tile.
    EXPECT_LE((*matrix)->bytes(), 1.04 * weights.bytes.size()) << InfoOf(type).name;
  }
}

TEST(LinearPrepareTest, ShapesThatATypeCannotHaveAreRefusedByName) {
  const std::byte data[64] = {};
  const auto message = [](std::vector<WeightSource> sources) {
    const absl::Status status = ValidateSources(sources);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_NE(message({}).find("no matrix"), std::string::npos);
  EXPECT_NE(message({{WeightType::kQ4_K, 16, 128, data}}).find("Q4_K matrix of 128 columns"),
            std::string::npos);
  EXPECT_NE(message({{WeightType::kQ8_0, 16, 33, data}}).find("block of 32"), std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, 16, 0, data}}).find("0 columns"), std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, 16, -32, data}}).find("-32 columns"), std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, 0, 32, data}}).find("0 rows"), std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, kMaxFeatures + 1, 32, data}}).find("16777217 rows"),
            std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, 16, kMaxFeatures + 32, data}}).find("16777248 columns"),
            std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, 16, 32, nullptr}}).find("without data"), std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, 16, 32, data}, {WeightType::kF32, 16, 64, data}})
                .find("32 and 64 columns"),
            std::string::npos);
  EXPECT_NE(message({{WeightType::kF32, kMaxFeatures, 32, data}, {WeightType::kF32, 1, 32, data}})
                .find("16777217 rows in all"),
            std::string::npos);
  EXPECT_NE(message({{static_cast<WeightType>(11), 16, 32, data}}).find("weight type 11"),
            std::string::npos);
}

}  // namespace
}  // namespace strata
