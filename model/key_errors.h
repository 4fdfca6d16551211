#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/page_codec.h"
#include "model/flat_kv.h"
#include "model/model_config.h"

namespace strata {

// How much attention's output moves, layer by layer, when K alone is read in 2 bits:
//   sum |o~ - o|^2 / sum |o|^2 over sampled queries and all heads, V exact,
// where a query reads the first block (the sink) and its own exactly, as any policy does. Layers
// differ tenfold, and no closed form of the moments of q and K foretells which suffer: attention
// that hangs on a few keys does.
class KeyErrors {
 public:
  // For text of `tokens` tokens, whole blocks.
  KeyErrors(const ModelConfig& config, int32_t tokens);

  // Keeps those of a layer's queries that are sampled; q as a QueryObserver gets it: rows at
  // positions first.. , [rows][query_heads][head_dim] in the basis of the pages to come.
  void AddQueries(int32_t layer, int32_t first, int32_t rows, const float* q);

  // [layers], from the F16 pages of sequence 0. 0 for a layer with a value that is not finite: such
  // blocks are never coded.
  absl::StatusOr<std::vector<float>> Measure(const PageCodec& codec, FlatKv* kv) const;

 private:
  struct LayerPages;
  struct Energy {
    double error = 0;
    double output = 0;
  };
  // One query in this many, over the later half of the text: there most of what it reads is coded.
  static constexpr int32_t kStride = 8;

  int32_t Samples() const { return (tokens_ - tokens_ / 2) / kStride; }
  int32_t Position(int32_t sample) const { return tokens_ / 2 + kStride * (sample + 1) - 1; }
  absl::StatusOr<LayerPages> ReadLayer(const PageCodec& codec, FlatKv* kv, int32_t layer) const;
  void AddQuery(const LayerPages& pages, int32_t position, int32_t head, const float* q,
                Energy* energy) const;

  const int32_t layers_;
  const int32_t query_heads_;
  const int32_t kv_heads_;
  const int32_t head_dim_;
  const int32_t tokens_;
  std::vector<float> queries_;  // [layer][sample][query_heads][head_dim]
};

}  // namespace strata
