#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/gguf_file.h"

namespace strata {

// Metadata under an architecture's prefix ("llama.block_count"), with ranges checked. Borrows the
// file.
class ModelMetadata {
 public:
  ModelMetadata(const GgufFile& file, absl::string_view architecture)
      : file_(file), architecture_(architecture) {}

  std::string Key(absl::string_view suffix) const {
    return absl::StrCat(architecture_, ".", suffix);
  }
  bool Has(absl::string_view suffix) const { return file_.Has(Key(suffix)); }

  // The integer at `suffix`, or `absent` where that is given and the key is missing. A per-layer
  // array of equal values counts as that value; one that varies is Unimplemented.
  absl::StatusOr<int32_t> Int(absl::string_view suffix, int64_t low, int64_t high,
                              std::optional<int64_t> absent = std::nullopt) const;
  // The same for a finite float.
  absl::StatusOr<float> Float(absl::string_view suffix, double low, double high,
                              std::optional<double> absent = std::nullopt) const;

 private:
  absl::StatusOr<int64_t> RawInt(const std::string& key) const;

  const GgufFile& file_;
  std::string architecture_;
};

}  // namespace strata
