#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "tiering/tiered_cache.h"

namespace strata::bench {

// One way to spread a sequence over tiers, as named on a command line:
//   f16                          everything hot
//   i4 | i2 | k4v2 | ...         every block behind the piece at that format, but for one exact
//   sink block ladder:SINK,RECENT,WARM      tokens of F16 sink, F16 window and I4 window; the rest
//   I2 ladder:SINK,RECENT,WARM:A,B  the same with formats A (warm) and B (cold)
//   all-f16:SINK,RECENT,WARM     that ladder's moves with F16 in every tier
// What is colder than I4 keeps K at I4 in the layers that need it most, as a server does by
// default. Suffix +even: all layers are as cold as the others.
struct Ladder {
  std::string name;
  PositionalPolicy policy;
  TensorKinds warm;
  TensorKinds cold;
  int32_t k_layers = 8;  // whose K stays at I4
};

absl::StatusOr<Ladder> ParseLadder(absl::string_view text);

struct LadderCacheOptions {
  int32_t max_tokens = 0;  // of the one sequence
  int32_t piece_tokens = 256;
  std::string cold_path;         // directory of the cold store's file
  bool stage_everything = true;  // DRAM for every cold page; false: for streaming only
};

// A cache with just the budgets that one sequence of `max_tokens` needs under this ladder.
absl::StatusOr<std::unique_ptr<TieredCache>> MakeLadderCache(const Model& model, Backend* backend,
                                                             const Ladder& ladder,
                                                             const LadderCacheOptions& options);

// Admits a sequence as long as the cache, once the records of an earlier one are erased from disk.
absl::StatusOr<SequenceHandle> AdmitWhenFree(TieredCache* cache, const PositionalPolicy& policy);

// Bits a value over everything the sequence holds, weighted by tokens.
double MeanBits(const SequenceUsage& usage);

}  // namespace strata::bench
