#include "kernels/cpu/linear_rope.h"

#include <algorithm>
#include <cmath>

namespace strata {

void RopeAngles::Update(const RopeParams& rope, const int32_t* positions, int32_t rows,
                        int32_t head_dim) {
  if (Holds(rope, positions, rows, head_dim)) return;
  pairing_ = rope.pairing;
  magnitude_ = rope.magnitude;
  head_dim_ = head_dim;
  frequency_.assign(rope.frequency, rope.frequency + rope.dim / 2);
  positions_.assign(positions, positions + rows);
  table_.resize(size_t{2} * rows * head_dim);
  for (int32_t row = 0; row < rows; ++row) {
    float* cosine = table_.data() + size_t{2} * row * head_dim;
    ComputeRow(positions[row], cosine, cosine + head_dim);
  }
}

bool RopeAngles::Holds(const RopeParams& rope, const int32_t* positions, int32_t rows,
                       int32_t head_dim) const {
  return pairing_ == rope.pairing && magnitude_ == rope.magnitude && head_dim_ == head_dim &&
         std::equal(frequency_.begin(), frequency_.end(), rope.frequency,
                    rope.frequency + rope.dim / 2) &&
         std::equal(positions_.begin(), positions_.end(), positions, positions + rows);
}

void RopeAngles::ComputeRow(int32_t position, float* cosine, float* sine) const {
  std::fill(cosine, cosine + head_dim_, 1.0f);
  std::fill(sine, sine + head_dim_, 0.0f);
  const auto pairs = static_cast<int32_t>(frequency_.size());
  const bool halves = pairing_ == RopeParams::Pairing::kHalves;
  for (int32_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * static_cast<double>(frequency_[i]);
    const int32_t first = halves ? i : 2 * i;
    const int32_t second = halves ? i + pairs : 2 * i + 1;
    cosine[first] = cosine[second] = static_cast<float>(std::cos(angle) * magnitude_);
    sine[second] = static_cast<float>(std::sin(angle) * magnitude_);
    sine[first] = -sine[second];
  }
}

}  // namespace strata
