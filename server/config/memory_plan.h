#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/model_size.h"
#include "server/config/derive_options.h"
#include "server/config/server_options.h"
#include "tiering/tier_plan.h"

namespace strata {

// What a server with these options takes of a machine, and what its windows are: the server's own
// derivation, before there is a server.
struct MemoryPlan {
  TierOptions tiers;
  TierPlan layout;
  PositionalPolicy windows;  // of requests that ask for none

  bool on_gpu = false;         // weights, hot tier and step lie in a GPU's memory
  uint64_t weight_bytes = 0;   // as packed for a CPU; a GPU's layout is about as large
  uint64_t step_bytes = 0;     // activations and logits of the largest step
  uint64_t gather_bytes = 0;   // of a GPU, for pages of the host's memory
  uint64_t message_bytes = 0;  // gRPC messages being read or written
  uint64_t process_bytes = 0;  // program, tokenizer, threads, connections: measured, rounded up

  uint64_t MemoryBytes() const;  // of the host
  uint64_t DeviceBytes() const;  // of the GPU; 0 without one
  // As a container's limit: an eighth more, for what the kernel charges to it (page tables,
  // sockets, the pages of the model file being read), in whole 64 MiB.
  uint64_t MemoryLimit() const;
  // Tokens of one sequence that a tier holds when all sequences share it evenly.
  int64_t TokensPerSequence(Tier tier) const;
};

// `machine` is what there is before the server starts. The errors of DeriveTierOptions and
// TierPlan::CheckMinimum.
absl::StatusOr<MemoryPlan> MakeMemoryPlan(const ServerOptions& options, const ModelSize& model,
                                          MachineFacts machine);

// Bytes of messages that gRPC may hold at once.
uint64_t MessageMemory(const ServerOptions& options);

}  // namespace strata
