#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/page_codec.h"
#include "tiering/tiered_cache_impl.h"

namespace strata {

// Options of a small cache: pieces of two blocks, K4V4 above K2V2 with one I4 layer at each end,
// and 4 KiB cold units. Budgets are in blocks; cold blocks need a path.
struct SmallBudget {
  int32_t hot_blocks = 64;
  int32_t warm_blocks = 0;
  int32_t cold_blocks = 0;
  int32_t staging_units = 128;
  std::string cold_path;
  KvGeometry geometry{12, 2, 32};
};
TierOptions SmallOptions(const SmallBudget& budget);

// A file name of its own in the test's temporary directory, removed with the object.
class ScratchPath {
 public:
  explicit ScratchPath(const std::string& directory = "");
  ScratchPath(const ScratchPath&) = delete;
  ScratchPath& operator=(const ScratchPath&) = delete;
  ~ScratchPath();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Plays the engine: fills what a step appends with values that are a function of (content, layer,
// position, channel), and compares every page that a step is given, byte for byte, with the same
// function put through the reference codec, and the precision it is to be read at with the one the
// policy names. So it is a flat model of the cache's content. Failed comparisons are reported as
// test failures.
class CacheDriver {
 public:
  struct Sequence {
    SequenceHandle handle = 0;
    uint64_t content = 0;
    PositionalPolicy policy;
    int32_t max_tokens = 0;
    int32_t tokens = 0;
    std::set<int32_t> poisoned;  // blocks that hold a value that is not finite
  };

  CacheDriver(TieredCacheImpl* cache, const PageCodec* codec) : cache_(*cache), codec_(*codec) {}

  absl::StatusOr<Sequence> Admit(uint64_t content, int32_t max_tokens,
                                 const PositionalPolicy& policy);
  void Release(const Sequence& sequence) { cache_.Release(sequence.handle); }
  void Reset(Sequence* sequence);

  struct Turn {
    Sequence* sequence = nullptr;
    int32_t tokens = 0;
  };
  // One step over all layers. On an error the step is abandoned and the sequences keep their
  // tokens. `abandon` gives a step up half-way without an error.
  absl::Status Step(const std::vector<Turn>& turns, bool abandon = false);
  // Steps of whole pieces, then single tokens, until the sequence has `tokens`.
  absl::Status Grow(Sequence* sequence, int32_t tokens);
  // As many tokens as one step may take: to the end of the piece.
  int32_t PieceLeft(const Sequence& sequence) const;

  // Forgets what a content looks like, to save memory in long runs.
  void Forget(uint64_t content);

 private:
  void Append(const Sequence& sequence, int32_t layer, int32_t position,
              const AppendTarget& target);
  void Compare(const Sequence& sequence, int32_t tokens, int32_t layer,
               const AttentionSequence& given);
  void ComparePage(const Sequence& sequence, int32_t block, int32_t tokens, int32_t layer,
                   const PageRun& run, const KvPageView& page);
  void CompareOpenPage(const Sequence& sequence, int32_t block, int32_t tokens, int32_t layer,
                       const std::byte* page);
  const std::vector<std::byte>& Expected(const Sequence& sequence, int32_t layer, int32_t block,
                                         const PageFormat& stored);

  TieredCacheImpl& cache_;
  const PageCodec& codec_;
  // By content, layer, block, and kinds of K and V.
  std::map<std::tuple<uint64_t, int32_t, int32_t, KvKind, KvKind>, std::vector<std::byte>>
      expected_;
};

}  // namespace strata
