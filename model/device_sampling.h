#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/sample_types.h"
#include "model/sampler.h"

namespace strata {

// Whether a device draws the token itself (kernels/cuda/sample_launch.h). Greedy choice,
// temperature, bias, bans and penalties are exact there; top_k, typical_p, top_p and min_p need an
// order of the tokens, so such a request's logits go to the host and to Sampler.
bool DeviceCanSample(const SamplingParams& params, int32_t vocab_size);

// Appends to `edits` what `params` and `state` do to single tokens, and returns the row to sample.
// `params` must be valid and one that a device can sample; the caller sets logits_row and adjusted.
cuda::SampleRow PrepareSample(const SamplingParams& params, const SamplingState& state,
                              int32_t vocab_size, std::vector<cuda::TokenEdit>* edits);

}  // namespace strata
