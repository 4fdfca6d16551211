#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/layout/geometry.h"
#include "model/kv_measurement.h"

namespace strata {

// A model's measured basis and errors of K in a file, so that they are measured once a model.
// Little-endian:
//   "STRATAKB", version u32, layers u32, kv_heads u32, head_dim u32, flags u32 (1: K rotated,
//   2: V rotated), reserved u32, fingerprint u64, scales f32 [layers][kv_heads][head_dim],
//   errors of K f32 [layers], CRC32C u32 of all before it
//
// Reads refuse anything that is not exactly such a file for this fingerprint and geometry; the
// error says why. Writes are whole or absent: a temporary file is renamed into place.
absl::StatusOr<KvMeasurement> ReadBasisFile(const std::string& path, uint64_t fingerprint,
                                            const KvGeometry& geometry);
absl::Status WriteBasisFile(const std::string& path, uint64_t fingerprint,
                            const KvMeasurement& measured);

// Where the basis of the model at `model_path` may be kept, best first: in `cache_dir` where that
// is given, else beside the model, then in the user's cache directory ($XDG_CACHE_HOME/strata or
// $HOME/.cache/strata). Away from the model the name carries the fingerprint, as models of the same
// file name may meet there.
std::vector<std::string> BasisFileCandidates(const std::string& model_path,
                                             const std::string& cache_dir, uint64_t fingerprint);

}  // namespace strata
