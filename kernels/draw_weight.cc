#include "kernels/draw_weight.h"

namespace strata {

void DrawWeights(const float* logits, size_t count, uint64_t* weights) {
  for (size_t i = 0; i < count; ++i) weights[i] = DrawWeight(logits[i]);
}

}  // namespace strata
