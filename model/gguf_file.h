#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/linear_ops.h"

namespace strata {

// A tensor as it lies in the mapped file. dims[0] is the fastest (in_features of a matrix).
struct GgufTensor {
  std::string name;
  WeightType type = WeightType::kF32;
  std::vector<int64_t> dims;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// A GGUF v2/v3 model file, memory-mapped (ggml's docs/gguf.md). The file is untrusted: every count,
// length, offset, type and alignment is checked against the file's size before use, and every error
// names the file, the item, the value and the limit. Immutable after Open; any thread.
class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  virtual ~GgufFile() = default;

  virtual const std::string& path() const = 0;
  virtual bool Has(absl::string_view key) const = 0;
  // NotFound when absent, InvalidArgument when of another type or out of range. Integers of any
  // width convert when the value fits.
  virtual absl::StatusOr<uint64_t> Uint(absl::string_view key) const = 0;
  virtual absl::StatusOr<double> Float(absl::string_view key) const = 0;
  virtual absl::StatusOr<bool> Bool(absl::string_view key) const = 0;
  virtual absl::StatusOr<absl::string_view> String(absl::string_view key) const = 0;
  virtual absl::StatusOr<std::vector<absl::string_view>> Strings(absl::string_view key) const = 0;
  virtual absl::StatusOr<std::vector<int64_t>> Ints(absl::string_view key) const = 0;
  virtual absl::StatusOr<std::vector<float>> Floats(absl::string_view key) const = 0;

  virtual const std::vector<GgufTensor>& tensors() const = 0;
  virtual const GgufTensor* Find(absl::string_view name) const = 0;  // null when absent

  // Identity of the weights: of header, metadata, tensor table and a sample of every tensor's data.
  virtual uint64_t Fingerprint() const = 0;
  // Lets the operating system drop the tensor data's resident pages (after weights were repacked).
  virtual void DropResidentPages() const = 0;
};

}  // namespace strata
