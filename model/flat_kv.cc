#include "model/flat_kv.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace strata {

FlatKv::FlatKv(const KvGeometry& geometry, int32_t sequences, int32_t max_tokens)
    : geometry_(geometry),
      format_{KvKind::kF16, KvKind::kF16, geometry.kv_heads, geometry.head_dim},
      max_blocks_(BlocksForTokens(max_tokens)),
      tokens_(sequences) {}

absl::StatusOr<std::unique_ptr<FlatKv>> FlatKv::Create(const KvGeometry& geometry,
                                                       int32_t sequences, int32_t max_tokens,
                                                       DeviceMemory* memory) {
  STRATA_CHECK(geometry.Valid() && sequences > 0 && max_tokens > 0);
  std::unique_ptr<FlatKv> kv(new FlatKv(geometry, sequences, max_tokens));
  const size_t pages = size_t{1} * sequences * geometry.layers * kv->max_blocks_;
  STRATA_ASSIGN_OR_RETURN(kv->memory_, memory->AllocateDevice(pages * kv->format_.BaseBytes()));
  return kv;
}

std::byte* FlatKv::Page(int32_t sequence, int32_t layer, int32_t block) {
  const size_t page = (size_t{1} * sequence * geometry_.layers + layer) * max_blocks_ + block;
  return memory_.data() + page * format_.BaseBytes();
}

void FlatKv::Truncate(int32_t sequence, int32_t tokens) {
  STRATA_CHECK(tokens >= 0 && tokens <= tokens_[sequence]);
  tokens_[sequence] = tokens;
}

void FlatKv::BeginStep(absl::Span<const Piece> pieces) {
  pieces_.assign(pieces.begin(), pieces.end());
  for (const Piece& piece : pieces_) {
    STRATA_CHECK(piece.rows > 0);
    tokens_[piece.sequence] += piece.rows;
    STRATA_CHECK(tokens_[piece.sequence] <= max_blocks_ * kBlockTokens);
  }
}

absl::StatusOr<LayerKv> FlatKv::BeginLayer(int32_t layer) {
  targets_.clear();
  sequences_.clear();
  runs_.clear();
  views_.clear();
  size_t views = 0;
  for (const Piece& piece : pieces_) views += BlocksForTokens(tokens_[piece.sequence]);
  views_.reserve(views);  // runs point into it
  runs_.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const int32_t tokens = tokens_[piece.sequence];
    const int32_t first = tokens - piece.rows;
    PageRun run;
    run.stored = format_;
    run.page_count = BlocksForTokens(tokens);
    run.tokens = tokens;
    run.pages = views_.data() + views_.size();
    for (int32_t b = 0; b < run.page_count; ++b) {
      views_.push_back({Page(piece.sequence, layer, b), nullptr, 0});
    }
    runs_.push_back(run);
    sequences_.push_back({static_cast<int32_t>(targets_.size()), piece.rows, first,
                          absl::MakeConstSpan(&runs_.back(), 1)});
    for (int32_t t = first; t < tokens; ++t) {
      targets_.push_back({Page(piece.sequence, layer, BlockOfToken(t)), t % kBlockTokens});
    }
  }
  return LayerKv{targets_, sequences_};
}

}  // namespace strata
