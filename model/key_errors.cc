#include "model/key_errors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/status_macros.h"

namespace strata {
namespace {

constexpr int32_t kLanes = 16;  // divide every head dim; a loop of so many steps becomes vectors

float Dot(const float* a, const float* b, int32_t dim) {
  float sums[kLanes] = {};
  for (int32_t c = 0; c < dim; c += kLanes) {
    for (int32_t i = 0; i < kLanes; ++i) sums[i] += a[c + i] * b[c + i];
  }
  float sum = 0;
  for (const float x : sums) sum += x;
  return sum;
}

// sum += weight * a
void AddScaled(float weight, const float* a, int32_t dim, float* sum) {
  for (int32_t c = 0; c < dim; c += kLanes) {
    for (int32_t i = 0; i < kLanes; ++i) sum[c + i] += weight * a[c + i];
  }
}

// softmax(q k) v over the first `tokens` tokens of blocks of 64 rows of `dim` floats.
std::vector<float> Attend(const float* q, absl::Span<const float* const> k,
                          absl::Span<const float* const> v, int32_t tokens, int32_t dim) {
  std::vector<float> weights(tokens);
  for (int32_t t = 0; t < tokens; ++t) {
    weights[t] = Dot(q, k[t / kBlockTokens] + t % kBlockTokens * dim, dim);
  }
  const float top = *std::max_element(weights.begin(), weights.end());
  std::vector<float> o(dim);
  float sum = 0;
  for (int32_t t = 0; t < tokens; ++t) {
    const float weight = std::exp(weights[t] - top);
    sum += weight;
    AddScaled(weight, v[t / kBlockTokens] + t % kBlockTokens * dim, dim, o.data());
  }
  for (float& x : o) x /= sum;
  return o;
}

}  // namespace

// One layer's pages as floats, each [block][kv_head][64][head_dim].
struct KeyErrors::LayerPages {
  std::vector<float> k;
  std::vector<float> k_read;  // from 2 bits
  std::vector<float> v;
};

KeyErrors::KeyErrors(const ModelConfig& config, int32_t tokens)
    : layers_(config.layers),
      query_heads_(config.query_heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim),
      tokens_(tokens),
      queries_(size_t{1} * layers_ * Samples() * query_heads_ * head_dim_) {
  STRATA_CHECK(tokens % kBlockTokens == 0);
}

void KeyErrors::AddQueries(int32_t layer, int32_t first, int32_t rows, const float* q) {
  const size_t width = size_t{1} * query_heads_ * head_dim_;
  for (int32_t sample = 0; sample < Samples(); ++sample) {
    const int32_t row = Position(sample) - first;
    if (row < 0 || row >= rows) continue;
    std::copy_n(q + row * width, width,
                queries_.data() + (size_t{1} * layer * Samples() + sample) * width);
  }
}

absl::StatusOr<KeyErrors::LayerPages> KeyErrors::ReadLayer(const PageCodec& codec, FlatKv* kv,
                                                           int32_t layer) const {
  const PageFormat exact = kv->format();
  PageFormat coded = exact;
  coded.k = KvKind::kI2;
  std::vector<std::byte> bytes(exact.BaseBytes());
  std::vector<std::byte> coded_bytes(coded.BaseBytes());
  const size_t values = size_t{1} * kv_heads_ * kBlockTokens * head_dim_;
  LayerPages pages;
  for (std::vector<float>* part : {&pages.k, &pages.k_read, &pages.v}) {
    part->resize(tokens_ / kBlockTokens * values);
  }
  for (int32_t block = 0; block < tokens_ / kBlockTokens; ++block) {
    const std::byte* page = kv->Page(0, layer, block);
    float* v = pages.v.data() + block * values;
    STRATA_RETURN_IF_ERROR(codec.Encode(page, coded, coded_bytes.data(), nullptr));
    PageCodec::Decode(coded, coded.k, coded.v, coded_bytes.data(), nullptr,
                      pages.k_read.data() + block * values, v);
    STRATA_RETURN_IF_ERROR(codec.Fetch(page, bytes.size(), bytes.data()));
    PageCodec::Decode(exact, exact.k, exact.v, bytes.data(), nullptr,
                      pages.k.data() + block * values, v);
  }
  return pages;
}

void KeyErrors::AddQuery(const LayerPages& pages, int32_t position, int32_t head, const float* q,
                         Energy* energy) const {
  const int32_t kv_head = head / (query_heads_ / kv_heads_);
  const int32_t own = position / kBlockTokens;
  std::vector<const float*> k, k_read, v;
  for (int32_t block = 0; block <= own; ++block) {
    const size_t at = (size_t{1} * block * kv_heads_ + kv_head) * kBlockTokens * head_dim_;
    k.push_back(pages.k.data() + at);
    k_read.push_back(block == 0 || block == own ? k.back() : pages.k_read.data() + at);
    v.push_back(pages.v.data() + at);
  }
  const std::vector<float> o = Attend(q, k, v, position + 1, head_dim_);
  const std::vector<float> o_read = Attend(q, k_read, v, position + 1, head_dim_);
  for (int32_t c = 0; c < head_dim_; ++c) {
    const double error = o_read[c] - o[c];
    energy->error += error * error;
    energy->output += double{o[c]} * double{o[c]};
  }
}

absl::StatusOr<std::vector<float>> KeyErrors::Measure(const PageCodec& codec, FlatKv* kv) const {
  std::vector<float> errors;
  const float* q = queries_.data();
  for (int32_t layer = 0; layer < layers_; ++layer) {
    const absl::StatusOr<LayerPages> pages = ReadLayer(codec, kv, layer);
    if (!pages.ok() && !absl::IsInvalidArgument(pages.status())) return pages.status();
    Energy energy;
    for (int32_t sample = 0; sample < Samples(); ++sample) {
      for (int32_t head = 0; head < query_heads_; ++head, q += head_dim_) {
        if (pages.ok()) AddQuery(*pages, Position(sample), head, q, &energy);
      }
    }
    const double error = energy.error / energy.output;
    errors.push_back(std::isfinite(error) ? static_cast<float>(error) : 0.0f);
  }
  return errors;
}

}  // namespace strata
