#include "kernels/cuda/attention_variants.cuh"

namespace strata::cuda {

AttentionVariant AttentionUpTo64(bool wide) {
  return wide ? AttentionInstance<4, AttentionWideQueries(64) / 8, 3>::Variant()
              : AttentionInstance<4, 1, 4>::Variant();
}

}  // namespace strata::cuda
