#include "tests/testing/tiny_model.h"

#include <cmath>
#include <random>
#include <utility>

#include "base/half.h"

namespace strata {
namespace {

constexpr int32_t kSpecialTokens = 3;

constexpr const char* kMerges[] = {"h e",   "i n",   "r e",  "o n",  "a n", "e r", "t h",   "o u",
                                   "Ġ t",   "Ġ a",   "Ġ s",  "Ġ w",  "Ġ o", "Ġ c", "in g",  "an d",
                                   "Ġt he", "Ġ and", "Ġo n", "l l",  "e d", "o r", "i t",   "e s",
                                   "Ġ f",   "Ġ b",   "o m",  "e n",  "a t", "i s", "Ġw he", "s t",
                                   "Ġc an", "l y",   "v er", "Ġ ing"};

// The printable stand-in for a byte in byte-level BPE vocabularies, as UTF-8.
std::string ByteToken(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

std::vector<std::string> MakeVocabulary() {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(ByteToken(byte));
  for (const std::string merge : kMerges) {
    const size_t space = merge.find(' ');
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  return tokens;
}

void AddTokenizer(GgufBuilder* builder) {
  std::vector<int32_t> kinds(TinyVocabulary().size(), 1);
  for (int i = 0; i < kSpecialTokens; ++i) kinds[i] = 3;  // control
  builder->String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", "smollm")
      .Strings("tokenizer.ggml.tokens", TinyVocabulary())
      .I32s("tokenizer.ggml.token_type", kinds)
      .Strings("tokenizer.ggml.merges", {std::begin(kMerges), std::end(kMerges)})
      .U32("tokenizer.ggml.bos_token_id", 1)
      .U32("tokenizer.ggml.eos_token_id", 2)
      .U32("tokenizer.ggml.padding_token_id", 2)
      .Bool("tokenizer.ggml.add_bos_token", false)
      .Bool("tokenizer.ggml.add_space_prefix", false)
      .String("tokenizer.chat_template",
              "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
              "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

// A quantized block: random bytes, and halves that give its values about the wanted deviation.
struct BlockRecipe {
  struct Field {
    int32_t offset;
    float factor;  // of the deviation
  };
  std::vector<Field> halves;
};

// The factors follow from the deviation of uniform codes: 74 for int8, 4.6 for 0..15, 9.2 for
// 0..31; minima centre the codes. K-quants multiply by uniform 6- or 8-bit scales.
BlockRecipe RecipeOf(WeightType type) {
  switch (type) {
    case WeightType::kQ8_0:
      return {{{0, 1 / 74.0f}}};
    case WeightType::kQ4_0:
      return {{{0, 1 / 4.6f}}};
    case WeightType::kQ4_1:
      return {{{0, 1 / 4.6f}, {2, -7.5f / 4.6f}}};
    case WeightType::kQ5_0:
      return {{{0, 1 / 9.2f}}};
    case WeightType::kQ5_1:
      return {{{0, 1 / 9.2f}, {2, -15.5f / 9.2f}}};
    case WeightType::kQ4_K:
      return {{{0, 1 / 258.0f}, {2, 7.5f / 258}}};
    case WeightType::kQ5_K:
      return {{{0, 1 / 520.0f}, {2, 15.5f / 520}}};
    case WeightType::kQ6_K:
      return {{{208, 1 / 1369.0f}}};
    default:
      return {};
  }
}

class RandomWeights {
 public:
  explicit RandomWeights(uint32_t seed) : engine_(seed) {}

  // Sums of uniform numbers, not std::normal_distribution: the same on every standard library.
  float Normal() {
    float sum = 0;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(engine_() >> 8) * 0x1p-24f;
    return sum - 6;
  }
  std::vector<float> Vector(int32_t size, float mean, float deviation) {
    std::vector<float> values(size);
    for (float& value : values) value = mean + deviation * Normal();
    return values;
  }
  std::string Matrix(WeightType type, int64_t values, float deviation) {
    std::string bytes;
    const WeightTypeInfo& info = InfoOf(type);
    if (info.block_values == 1) {
      for (int64_t i = 0; i < values; ++i) bytes += Scalar(type, deviation * Normal());
      return bytes;
    }
    const BlockRecipe recipe = RecipeOf(type);
    for (int64_t i = 0; i < values / info.block_values; ++i) {
      std::string block(info.block_bytes, '\0');
      for (char& byte : block) byte = static_cast<char>(engine_() >> 24);
      for (const auto& [offset, factor] : recipe.halves) {
        block.replace(offset, 2, GgufBuilder::Bytes(FloatToHalf(factor * deviation)));
      }
      bytes += block;
    }
    return bytes;
  }

 private:
  static std::string Scalar(WeightType type, float value) {
    if (type == WeightType::kF16) return GgufBuilder::Bytes(FloatToHalf(value));
    const std::string bytes = GgufBuilder::Bytes(value);
    return type == WeightType::kBF16 ? bytes.substr(2) : bytes;
  }

  std::mt19937 engine_;
};

void AddMetadata(const TinyModelOptions& options, GgufBuilder* builder) {
  const std::string prefix = options.architecture + ".";
  builder->String("general.architecture", options.architecture)
      .String("general.name", "Tiny " + options.architecture)
      .U32(prefix + "block_count", options.layers)
      .U32(prefix + "context_length", options.context_length)
      .U32(prefix + "embedding_length", options.width)
      .U32(prefix + "feed_forward_length", options.ffn_width)
      .U32(prefix + "attention.head_count", options.query_heads)
      .U32(prefix + "attention.head_count_kv", options.kv_heads)
      .U32(prefix + "attention.key_length", options.head_dim)
      .U32(prefix + "attention.value_length", options.head_dim)
      .F32(prefix + "attention.layer_norm_rms_epsilon", 1e-5f)
      .F32(prefix + "rope.freq_base", 10000.0f);
}

void AddTensors(const TinyModelOptions& options, GgufBuilder* builder) {
  RandomWeights random(options.seed);
  const auto matrix = [&](const std::string& name, int32_t out, int32_t in) {
    builder->Tensor(name, options.type, {in, out},
                    random.Matrix(options.type, int64_t{1} * out * in, 1 / std::sqrt(1.0f * in)));
  };
  const auto vector = [&](const std::string& name, int32_t size, float mean) {
    builder->F32Tensor(name, {size}, random.Vector(size, mean, 0.1f));
  };
  const int32_t q_width = options.query_heads * options.head_dim;
  const int32_t kv_width = options.kv_heads * options.head_dim;
  const auto vocabulary = static_cast<int32_t>(TinyVocabulary().size());
  matrix("token_embd.weight", vocabulary, options.width);
  for (int32_t l = 0; l < options.layers; ++l) {
    const std::string prefix = "blk." + std::to_string(l) + ".";
    vector(prefix + "attn_norm.weight", options.width, 1);
    matrix(prefix + "attn_q.weight", q_width, options.width);
    matrix(prefix + "attn_k.weight", kv_width, options.width);
    matrix(prefix + "attn_v.weight", kv_width, options.width);
    if (options.architecture == "qwen2") {
      vector(prefix + "attn_q.bias", q_width, 0);
      vector(prefix + "attn_k.bias", kv_width, 0);
      vector(prefix + "attn_v.bias", kv_width, 0);
    }
    if (options.architecture == "qwen3") {
      vector(prefix + "attn_q_norm.weight", options.head_dim, 1);
      vector(prefix + "attn_k_norm.weight", options.head_dim, 1);
    }
    matrix(prefix + "attn_output.weight", options.width, q_width);
    vector(prefix + "ffn_norm.weight", options.width, 1);
    matrix(prefix + "ffn_gate.weight", options.ffn_width, options.width);
    matrix(prefix + "ffn_up.weight", options.ffn_width, options.width);
    matrix(prefix + "ffn_down.weight", options.width, options.ffn_width);
  }
  vector("output_norm.weight", options.width, 1);
  if (!options.tied_embeddings) {
    std::string output = random.Matrix(options.type, int64_t{1} * vocabulary * options.width, 0.3f);
    const size_t row = output.size() / vocabulary;
    // Every type reads zero bytes as zeros.
    output.replace(0, kSpecialTokens * row, std::string(kSpecialTokens * row, '\0'));
    builder->Tensor("output.weight", options.type, {options.width, vocabulary}, output);
  }
}

}  // namespace

const std::vector<std::string>& TinyVocabulary() {
  static const auto* const tokens = new std::vector<std::string>(MakeVocabulary());
  return *tokens;
}

void AddTinyModel(const TinyModelOptions& options, GgufBuilder* builder) {
  AddMetadata(options, builder);
  AddTokenizer(builder);
  AddTensors(options, builder);
}

void WriteTinyModel(const TinyModelOptions& options, const std::string& path) {
  GgufBuilder builder;
  AddTinyModel(options, &builder);
  builder.WriteTo(path);
}

}  // namespace strata
