#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "cache/layout/geometry.h"
#include "cache/layout/page_format.h"
#include "kernels/device_memory.h"
#include "kernels/kv_step.h"

namespace strata {

// The simplest KV cache: every page F16 and resident, a fixed room for each of a few sequences.
// For calibration, tools and tests; serving uses tiers. One thread.
class FlatKv : public KvStep {
 public:
  // The rows that the next step appends to one sequence.
  struct Piece {
    int32_t sequence = 0;
    int32_t rows = 0;
  };

  // The pages are of `memory`, the device of the model that will write them. ResourceExhausted when
  // it cannot be had.
  static absl::StatusOr<std::unique_ptr<FlatKv>> Create(const KvGeometry& geometry,
                                                        int32_t sequences, int32_t max_tokens,
                                                        DeviceMemory* memory = HostMemory());

  // Lays out the next step and counts its rows as present. Pieces name distinct sequences and must
  // fit (CHECKed).
  void BeginStep(absl::Span<const Piece> pieces);
  absl::StatusOr<LayerKv> BeginLayer(int32_t layer) override;

  int32_t tokens(int32_t sequence) const { return tokens_[sequence]; }
  // Forgets the tokens from position `tokens` on.
  void Truncate(int32_t sequence, int32_t tokens);

  PageFormat format() const { return format_; }
  // In device memory.
  std::byte* Page(int32_t sequence, int32_t layer, int32_t block);

 private:
  FlatKv(const KvGeometry& geometry, int32_t sequences, int32_t max_tokens);

  const KvGeometry geometry_;
  const PageFormat format_;
  const int32_t max_blocks_;
  Buffer memory_;  // [sequence][layer][block]
  std::vector<int32_t> tokens_;

  // The step: what BeginLayer's spans point at.
  std::vector<Piece> pieces_;
  std::vector<AppendTarget> targets_;
  std::vector<AttentionSequence> sequences_;
  std::vector<PageRun> runs_;      // one a piece
  std::vector<KvPageView> views_;  // of all runs
};

}  // namespace strata
