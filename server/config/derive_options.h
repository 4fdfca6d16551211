#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/config/server_options.h"
#include "server/engine/engine.h"
#include "tiering/tier_options.h"

namespace strata {

// What a loaded model adds to the options.
struct ModelFacts {
  KvGeometry geometry;
  int32_t context_length = 0;
  uint64_t fingerprint = 0;
  uint64_t basis_hash = 0;
  absl::Span<const float> k_errors;  // Model::k_errors; empty: not known
};

// What this process may still use.
struct MachineFacts {
  uint64_t memory_available = 0;  // bytes; the cgroup's limit counts
  uint64_t disk_available = 0;    // bytes at the cold path; 0 without one
  // Of a device with memory of its own, where hot blocks lie: what the model has left of it.
  std::optional<uint64_t> device_available;
};
MachineFacts ReadMachine(const std::string& cold_path);

// The options of the cache for this model on this machine, budgets derived where they are not
// given. InvalidArgument naming option, value and limit for what does not fit the model.
absl::StatusOr<TierOptions> DeriveTierOptions(const ServerOptions& options, const ModelFacts& model,
                                              const MachineFacts& machine);

// The engine's, with the default windows that the options or else the budgets give.
EngineOptions DeriveEngineOptions(const ServerOptions& options, const TierOptions& tiers);

// A model's name where none is given: its file's, without directories and .gguf.
std::string ModelNameOf(const ModelSection& model);

}  // namespace strata
