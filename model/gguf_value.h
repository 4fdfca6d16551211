#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// Types of metadata values; the numbers are GGUF's.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

absl::string_view NameOf(GgufValueType type);

// A metadata value where it lies in the mapped file, already checked: its bytes, those of all its
// strings included, are inside the file.
struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;  // of the value, or of an array's elements
  bool is_array = false;
  uint64_t count = 1;             // elements
  const std::byte* at = nullptr;  // the first element; strings are a length and bytes each
};

// Reads the bytes of an untrusted file in order. Every read is checked against the end; an error
// names the offset, what was being read, and how many bytes were left.
class GgufCursor {
 public:
  GgufCursor(const std::byte* data, size_t size) : data_(data), size_(size) {}

  size_t offset() const { return offset_; }
  size_t remaining() const { return size_ - offset_; }
  const std::byte* here() const { return data_ + offset_; }

  absl::Status Skip(uint64_t bytes, absl::string_view what);
  absl::StatusOr<uint32_t> U32(absl::string_view what);
  absl::StatusOr<uint64_t> U64(absl::string_view what);
  absl::StatusOr<absl::string_view> String(uint64_t limit, absl::string_view what);
  // A value of a metadata key: its type, then the value. Arrays of arrays are Unimplemented.
  absl::StatusOr<GgufValue> Value(absl::string_view key);

 private:
  absl::StatusOr<GgufValueType> ValueType(absl::string_view key);
  absl::Status SkipElements(const GgufValue& value, absl::string_view key);

  const std::byte* data_;
  size_t size_;
  size_t offset_ = 0;
};

// One element of a checked value as an integer or a float; `at` is the element.
bool IsInteger(GgufValueType type);
size_t ElementBytes(GgufValueType type);  // 0 for strings
// False when the value does not fit.
bool ReadInteger(GgufValueType type, const std::byte* at, int64_t* out);
bool ReadUnsigned(GgufValueType type, const std::byte* at, uint64_t* out);

}  // namespace strata
