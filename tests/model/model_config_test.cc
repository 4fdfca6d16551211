#include "model/model_config.h"

#include <cmath>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/gguf_file.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tiny_model.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

class ModelConfigTest : public ::testing::Test {
 protected:
  // The tiny model, after what `changes` already holds.
  absl::StatusOr<ModelConfig> Read(GgufBuilder changes = {}, const TinyModelOptions& options = {}) {
    AddTinyModel(options, &changes);
    auto file = GgufFile::Open(folder_.Put("changed.gguf", changes.Build()));
    if (!file.ok()) return file.status();
    return ReadModelConfig(**file);
  }
  void ExpectError(GgufBuilder changes, absl::StatusCode code, const std::string& message) {
    const auto config = Read(std::move(changes));
    ASSERT_FALSE(config.ok()) << "expected: " << message;
    EXPECT_EQ(config.status().code(), code) << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message));
  }
  static GgufBuilder With(const std::string& key, uint32_t value) {
    GgufBuilder builder;
    builder.U32(key, value).Skip(key);
    return builder;
  }

  const TestFolder folder_;
};

TEST_F(ModelConfigTest, ReadsEachArchitecture) {
  const auto llama = Read();
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->architecture, "llama");
  EXPECT_EQ(llama->name, "Tiny llama");
  EXPECT_EQ(llama->layers, 2);
  EXPECT_EQ(llama->width, 64);
  EXPECT_EQ(llama->ffn_width, 96);
  EXPECT_EQ(llama->query_heads, 4);
  EXPECT_EQ(llama->kv_heads, 2);
  EXPECT_EQ(llama->head_dim, 32);
  EXPECT_EQ(llama->vocab_size, static_cast<int32_t>(TinyVocabulary().size()));
  EXPECT_EQ(llama->context_length, 4096);
  EXPECT_EQ(llama->norm_epsilon, 1e-5f);
  EXPECT_FALSE(llama->tied_embeddings);
  EXPECT_FALSE(llama->qkv_bias);
  EXPECT_FALSE(llama->qk_norm);
  EXPECT_EQ(llama->rope_pairing, RopeParams::Pairing::kInterleaved);
  EXPECT_EQ(llama->rope_dim, 32);

  TinyModelOptions options;
  options.architecture = "qwen2";
  options.tied_embeddings = true;
  const auto qwen2 = Read({}, options);
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_TRUE(qwen2->qkv_bias);
  EXPECT_FALSE(qwen2->qk_norm);
  EXPECT_TRUE(qwen2->tied_embeddings);
  EXPECT_EQ(qwen2->rope_pairing, RopeParams::Pairing::kHalves);

  options.architecture = "qwen3";
  const auto qwen3 = Read({}, options);
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_FALSE(qwen3->qkv_bias);
  EXPECT_TRUE(qwen3->qk_norm);
}

TEST_F(ModelConfigTest, FillsInWhatMayBeAbsent) {
  GgufBuilder builder;
  builder.Skip("llama.attention.head_count_kv")
      .Skip("llama.attention.key_length")
      .Skip("llama.attention.value_length")
      .Skip("llama.rope.freq_base");
  const auto config = Read(builder);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);  // 64 / 4
  ASSERT_EQ(config->rope_frequency.size(), 8u);
  EXPECT_EQ(config->rope_frequency[0], 1.0f);
  EXPECT_FLOAT_EQ(config->rope_frequency[4], 0.01f);  // 10000^(-8/16)
}

TEST_F(ModelConfigTest, PerLayerArraysMustBeEqual) {
  GgufBuilder equal;
  equal.I32s("llama.attention.head_count_kv", {2, 2}).Skip("llama.attention.head_count_kv");
  EXPECT_EQ(Read(equal)->kv_heads, 2);
  GgufBuilder varying;
  varying.I32s("llama.attention.head_count_kv", {2, 4}).Skip("llama.attention.head_count_kv");
  ExpectError(varying, absl::StatusCode::kUnimplemented, "varies by layer");
}

TEST_F(ModelConfigTest, RefusesImpossibleValues) {
  using absl::StatusCode;
  ExpectError(With("llama.block_count", 0), StatusCode::kInvalidArgument,
              "'llama.block_count' is 0, allowed are 1 to");
  ExpectError(With("llama.embedding_length", 1u << 31), StatusCode::kInvalidArgument,
              "'llama.embedding_length' is 2147483648");
  ExpectError(With("llama.attention.head_count_kv", 3), StatusCode::kInvalidArgument,
              "4 query heads cannot share 3 KV heads");
  ExpectError(With("llama.rope.dimension_count", 33), StatusCode::kInvalidArgument,
              "'llama.rope.dimension_count' is 33, allowed are 2 to 32");
  ExpectError(With("llama.rope.dimension_count", 31), StatusCode::kInvalidArgument, "is odd");
  GgufBuilder missing;
  missing.Skip("llama.block_count");
  ExpectError(missing, StatusCode::kNotFound, "'llama.block_count' is missing");
  GgufBuilder epsilon;
  epsilon.F32("llama.attention.layer_norm_rms_epsilon", std::nanf(""))
      .Skip("llama.attention.layer_norm_rms_epsilon");
  ExpectError(epsilon, StatusCode::kInvalidArgument, "layer_norm_rms_epsilon' is nan");
  GgufBuilder embedding;
  embedding.Skip("token_embd.weight");
  ExpectError(embedding, StatusCode::kInvalidArgument, "'token_embd.weight' is missing");
}

TEST_F(ModelConfigTest, RefusesUnsupportedFeaturesByName) {
  constexpr auto kCode = absl::StatusCode::kUnimplemented;
  GgufBuilder architecture;
  architecture.String("general.architecture", "gemma3").Skip("general.architecture");
  ExpectError(architecture, kCode, "architecture 'gemma3'");
  ExpectError(With("llama.expert_count", 8), kCode, "a mixture of 8 experts");
  ExpectError(With("llama.attention.value_length", 16), kCode, "a value length of 16");
  ExpectError(With("llama.attention.sliding_window", 1024), kCode,
              "a sliding window of 1024 tokens in a context of 4096");
  EXPECT_TRUE(Read(With("llama.attention.sliding_window", 4096)).ok());
  GgufBuilder capping;
  capping.F32("llama.attn_logit_softcapping", 50);
  ExpectError(capping, kCode, "'llama.attn_logit_softcapping'");
  GgufBuilder dim;
  dim.U32("llama.attention.key_length", 24).Skip("llama.attention.key_length");
  dim.U32("llama.attention.value_length", 24).Skip("llama.attention.value_length");
  ExpectError(dim, kCode, "a head dim of 24");
  GgufBuilder scaling;
  scaling.String("llama.rope.scaling.type", "longrope");
  ExpectError(scaling, kCode, "RoPE scaling 'longrope'");
}

TEST_F(ModelConfigTest, LinearScalingDividesFrequencies) {
  GgufBuilder builder;
  builder.String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
  const auto scaled = Read(builder);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  const auto plain = Read();
  for (size_t i = 0; i < plain->rope_frequency.size(); ++i) {
    EXPECT_FLOAT_EQ(scaled->rope_frequency[i], plain->rope_frequency[i] / 4);
  }
  EXPECT_EQ(scaled->rope_magnitude, 1.0f);
}

// Values worked out by hand from the paper's definitions, with D = 32, base 10000, L = 1024, s = 8:
// pair(r) = 32 ln(1024 / (2 pi r)) / (2 ln 10000), so pair(32) = 2.83 and pair(1) = 8.85, and the
// ramp runs from pair 2 to pair 9.
TEST_F(ModelConfigTest, YarnFollowsItsPaper) {
  GgufBuilder builder;
  builder.String("llama.rope.scaling.type", "yarn")
      .F32("llama.rope.scaling.factor", 8)
      .U32("llama.rope.scaling.original_context_length", 1024);
  const auto scaled = Read(builder);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  const auto plain = Read();
  const auto ratio = [&](int i) { return scaled->rope_frequency[i] / plain->rope_frequency[i]; };
  EXPECT_FLOAT_EQ(ratio(0), 1);
  EXPECT_FLOAT_EQ(ratio(2), 1);
  EXPECT_FLOAT_EQ(ratio(3), 6.0f / 7 + 1.0f / 7 / 8);
  EXPECT_FLOAT_EQ(ratio(7), 2.0f / 7 + 5.0f / 7 / 8);
  EXPECT_FLOAT_EQ(ratio(9), 1.0f / 8);
  EXPECT_FLOAT_EQ(ratio(15), 1.0f / 8);
  EXPECT_FLOAT_EQ(scaled->rope_magnitude, 0.1f * std::log(8.0f) + 1);
}

TEST_F(ModelConfigTest, FactorsOfLlama3DivideFrequencies) {
  GgufBuilder builder;
  std::vector<float> factors(16, 1.0f);
  factors[5] = 8;
  builder.F32Tensor("rope_freqs.weight", {16}, factors);
  const auto scaled = Read(builder);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  const auto plain = Read();
  EXPECT_EQ(scaled->rope_frequency[4], plain->rope_frequency[4]);
  EXPECT_FLOAT_EQ(scaled->rope_frequency[5], plain->rope_frequency[5] / 8);

  GgufBuilder zero;
  zero.F32Tensor("rope_freqs.weight", {16}, std::vector<float>(16, 0.0f));
  ExpectError(zero, absl::StatusCode::kInvalidArgument, "factor 0 at 0");
  GgufBuilder wrong;
  wrong.F32Tensor("rope_freqs.weight", {8}, std::vector<float>(8, 1.0f));
  ExpectError(wrong, absl::StatusCode::kInvalidArgument, "must be 16 values of type F32");
}

}  // namespace
}  // namespace strata
