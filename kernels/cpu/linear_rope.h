#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear_ops.h"

namespace strata {

// Cosines and sines of a step's rows, in the form RopeRowArgs wants. All layers of a step rotate by
// the same positions, so they are computed (in double) for the first layer and kept until positions
// or parameters change. One thread.
class RopeAngles {
 public:
  void Update(const RopeParams& rope, const int32_t* positions, int32_t rows, int32_t head_dim);

  const float* Cosine(int32_t row) const { return table_.data() + size_t{2} * row * head_dim_; }
  const float* Sine(int32_t row) const { return Cosine(row) + head_dim_; }

 private:
  bool Holds(const RopeParams& rope, const int32_t* positions, int32_t rows,
             int32_t head_dim) const;
  void ComputeRow(int32_t position, float* cosine, float* sine) const;

  RopeParams::Pairing pairing_ = RopeParams::Pairing::kInterleaved;
  float magnitude_ = 0;
  int32_t head_dim_ = 0;
  std::vector<float> frequency_;  // copied: the caller's array may change in place
  std::vector<int32_t> positions_;
  std::vector<float> table_;  // [rows][cosine, sine][head_dim]
};

}  // namespace strata
