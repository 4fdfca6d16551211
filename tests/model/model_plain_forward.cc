#include "tests/model/model_plain_forward.h"

#include <cmath>
#include <cstring>

namespace strata {

std::vector<float> PlainForward::Tensor(const std::string& name) const {
  const GgufTensor* tensor = file_.Find(name);
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->bytes / sizeof(float));
  std::memcpy(values.data(), tensor->data, tensor->bytes);
  return values;
}

PlainForward::Row PlainForward::Project(const std::string& name, const Row& x) const {
  const std::vector<float> w = Tensor(name + ".weight");
  const std::vector<float> bias = Tensor(name + ".bias");
  Row y(w.size() / x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = bias.empty() ? 0.0 : bias[i];
    for (size_t j = 0; j < x.size(); ++j) y[i] += w[i * x.size() + j] * x[j];
  }
  return y;
}

PlainForward::Row PlainForward::Norm(const std::string& name, const Row& x) const {
  const std::vector<float> w = Tensor(name + ".weight");
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale =
      1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_epsilon);
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
  return y;
}

void PlainForward::PrepareHeads(const std::string& norm, int32_t position, Row* heads) const {
  const size_t dim = config_.head_dim;
  const size_t half = config_.rope_dim / 2;
  for (size_t start = 0; start < heads->size(); start += dim) {
    Row head(heads->begin() + start, heads->begin() + start + dim);
    if (config_.qk_norm) head = Norm(norm, head);
    for (size_t i = 0; i < half; ++i) {
      const bool adjacent = config_.architecture == "llama";
      double& a = head[adjacent ? 2 * i : i];
      double& b = head[adjacent ? 2 * i + 1 : i + half];
      const double angle = position * double{config_.rope_frequency[i]};
      const double x = (a * std::cos(angle) - b * std::sin(angle)) * config_.rope_magnitude;
      b = (a * std::sin(angle) + b * std::cos(angle)) * config_.rope_magnitude;
      a = x;
    }
    std::copy(head.begin(), head.end(), heads->begin() + start);
  }
}

void PlainForward::Attend(const std::vector<Row>& q, const std::vector<Row>& k,
                          const std::vector<Row>& v, std::vector<Row>* out) const {
  const int32_t dim = config_.head_dim;
  const int32_t group = config_.query_heads / config_.kv_heads;
  out->assign(q.size(), Row(q[0].size(), 0.0));
  for (size_t t = 0; t < q.size(); ++t) {
    for (int32_t h = 0; h < config_.query_heads; ++h) {
      const int32_t kv = h / group * dim;
      Row weights(t + 1);
      double sum = 0;
      for (size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (int32_t c = 0; c < dim; ++c) score += q[t][h * dim + c] * k[s][kv + c];
        weights[s] = std::exp(score / std::sqrt(dim));
        sum += weights[s];
      }
      for (size_t s = 0; s <= t; ++s) {
        for (int32_t c = 0; c < dim; ++c) {
          (*out)[t][h * dim + c] += weights[s] / sum * v[s][kv + c];
        }
      }
    }
  }
}

std::vector<std::vector<double>> PlainForward::Logits(const std::vector<int32_t>& tokens) const {
  const std::vector<float> embedding = Tensor("token_embd.weight");
  std::vector<Row> x;
  for (const int32_t token : tokens) {
    const float* row = embedding.data() + size_t{1} * token * config_.width;
    x.emplace_back(row, row + config_.width);
  }
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    std::vector<Row> q, k, v, o;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row h = Norm(prefix + "attn_norm", x[t]);
      q.push_back(Project(prefix + "attn_q", h));
      k.push_back(Project(prefix + "attn_k", h));
      v.push_back(Project(prefix + "attn_v", h));
      PrepareHeads(prefix + "attn_q_norm", static_cast<int32_t>(t), &q.back());
      PrepareHeads(prefix + "attn_k_norm", static_cast<int32_t>(t), &k.back());
    }
    Attend(q, k, v, &o);
    for (size_t t = 0; t < x.size(); ++t) {
      const Row attention = Project(prefix + "attn_output", o[t]);
      for (size_t i = 0; i < attention.size(); ++i) x[t][i] += attention[i];
      const Row h = Norm(prefix + "ffn_norm", x[t]);
      Row gate = Project(prefix + "ffn_gate", h);
      const Row up = Project(prefix + "ffn_up", h);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      const Row down = Project(prefix + "ffn_down", gate);
      for (size_t i = 0; i < down.size(); ++i) x[t][i] += down[i];
    }
  }
  const std::string output = config_.tied_embeddings ? "token_embd" : "output";
  std::vector<Row> logits;
  for (const Row& row : x) logits.push_back(Project(output, Norm("output_norm", row)));
  return logits;
}

}  // namespace strata
