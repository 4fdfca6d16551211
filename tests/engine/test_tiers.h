#pragma once

#include <cstdint>
#include <string>

#include "model/model.h"
#include "tiering/tiered_cache.h"

namespace strata {

// Pieces of one block, and room in every tier for `sequences` sequences of `context` tokens each,
// under any policy.
inline TierOptions RoomyTiers(const Model& model, TensorKinds warm, TensorKinds cold,
                              int32_t sequences, int32_t context, const std::string& cold_path) {
  TierOptions tiers;
  tiers.geometry = model.config().Geometry();
  tiers.formats = TierFormats::Uniform(tiers.geometry.layers, warm, cold);
  tiers.model_fingerprint = model.fingerprint();
  tiers.basis_hash = model.basis().Hash();
  tiers.piece_tokens = kBlockTokens;
  tiers.max_sequences = sequences;
  tiers.max_context = context;
  const auto block_bytes = TieredCache::BlockBytes(tiers);
  const size_t blocks = size_t{1} * sequences * context / kBlockTokens;
  constexpr size_t kSpare = size_t{4} << 20;
  tiers.hot_bytes = blocks * block_bytes[0] + kSpare;
  tiers.warm_bytes = blocks * block_bytes[1] + kSpare;
  tiers.cold_bytes = blocks * (block_bytes[2] + 4096) + kSpare;
  tiers.staging_bytes = 4 * tiers.cold_bytes;
  tiers.cold_path = cold_path;
  return tiers;
}

}  // namespace strata
