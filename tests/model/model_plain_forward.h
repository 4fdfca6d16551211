#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/gguf_file.h"
#include "model/model_config.h"

namespace strata {

// The forward pass written out the obvious way, in double, over a whole sequence at once and with
// no cache: what the real one must equal. For models whose tensors are all F32.
class PlainForward {
 public:
  PlainForward(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  // Logits of every position: [tokens][vocab_size].
  std::vector<std::vector<double>> Logits(const std::vector<int32_t>& tokens) const;

 private:
  using Row = std::vector<double>;

  std::vector<float> Tensor(const std::string& name) const;
  Row Project(const std::string& name, const Row& x) const;  // with a bias where there is one
  Row Norm(const std::string& name, const Row& x) const;
  // Norms (where there are) and rotates every head of q or k.
  void PrepareHeads(const std::string& norm, int32_t position, Row* heads) const;
  void Attend(const std::vector<Row>& q, const std::vector<Row>& k, const std::vector<Row>& v,
              std::vector<Row>* out) const;

  const GgufFile& file_;
  const ModelConfig& config_;
};

}  // namespace strata
