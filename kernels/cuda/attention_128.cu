#include "kernels/cuda/attention_variants.cuh"

namespace strata::cuda {

AttentionVariant AttentionUpTo128(bool wide) {
  return wide ? AttentionInstance<8, AttentionWideQueries(128) / 8, 3>::Variant()
              : AttentionInstance<8, 1, 3>::Variant();
}

}  // namespace strata::cuda
