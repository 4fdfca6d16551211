#pragma once

#include <cstdint>

#include "kernels/cuda/attention_launch.h"

namespace strata::cuda {

// What the attention kernel makes of K of the launch's first page (codes), KV head 0, before any
// floating-point sum: codes [8][head_dim], the int8 of the first work item's queries, and dots
// [8][64], their integer scores.
cudaError_t LaunchCodeScores(const AttentionLaunch& launch, int8_t* codes, int32_t* dots);

}  // namespace strata::cuda
