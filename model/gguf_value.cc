#include "model/gguf_value.h"

#include <cstring>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace strata {
namespace {

constexpr uint64_t kMaxStringBytes = uint64_t{64} << 20;

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace

absl::string_view NameOf(GgufValueType type) {
  constexpr absl::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                          "int32",  "float32", "bool",   "string", "array",
                                          "uint64", "int64",   "float64"};
  return kNames[static_cast<uint32_t>(type)];
}

size_t ElementBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

bool IsInteger(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
      return true;
    default:
      return false;
  }
}

bool ReadInteger(GgufValueType type, const std::byte* at, int64_t* out) {
  switch (type) {
    case GgufValueType::kUint8:
      *out = Load<uint8_t>(at);
      return true;
    case GgufValueType::kInt8:
      *out = Load<int8_t>(at);
      return true;
    case GgufValueType::kUint16:
      *out = Load<uint16_t>(at);
      return true;
    case GgufValueType::kInt16:
      *out = Load<int16_t>(at);
      return true;
    case GgufValueType::kUint32:
      *out = Load<uint32_t>(at);
      return true;
    case GgufValueType::kInt32:
      *out = Load<int32_t>(at);
      return true;
    case GgufValueType::kInt64:
      *out = Load<int64_t>(at);
      return true;
    case GgufValueType::kUint64: {
      const uint64_t value = Load<uint64_t>(at);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
      *out = static_cast<int64_t>(value);
      return true;
    }
    default:
      return false;
  }
}

bool ReadUnsigned(GgufValueType type, const std::byte* at, uint64_t* out) {
  if (type == GgufValueType::kUint64) {
    *out = Load<uint64_t>(at);
    return true;
  }
  int64_t value = 0;
  if (!ReadInteger(type, at, &value) || value < 0) return false;
  *out = static_cast<uint64_t>(value);
  return true;
}

absl::Status GgufCursor::Skip(uint64_t bytes, absl::string_view what) {
  if (bytes > remaining()) {
    return absl::InvalidArgumentError(absl::StrCat("truncated at offset ", offset_, ": ", what,
                                                   " needs ", bytes, " bytes, ", remaining(),
                                                   " are left"));
  }
  offset_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> GgufCursor::U32(absl::string_view what) {
  const std::byte* at = here();
  STRATA_RETURN_IF_ERROR(Skip(sizeof(uint32_t), what));
  return Load<uint32_t>(at);
}

absl::StatusOr<uint64_t> GgufCursor::U64(absl::string_view what) {
  const std::byte* at = here();
  STRATA_RETURN_IF_ERROR(Skip(sizeof(uint64_t), what));
  return Load<uint64_t>(at);
}

absl::StatusOr<absl::string_view> GgufCursor::String(uint64_t limit, absl::string_view what) {
  STRATA_ASSIGN_OR_RETURN(const uint64_t length, U64(what));
  if (length > limit) {
    return absl::InvalidArgumentError(absl::StrCat(what, " at offset ", offset_, " is ", length,
                                                   " bytes long, the limit is ", limit));
  }
  const auto* text = reinterpret_cast<const char*>(here());
  STRATA_RETURN_IF_ERROR(Skip(length, what));
  return absl::string_view(text, length);
}

absl::StatusOr<GgufValueType> GgufCursor::ValueType(absl::string_view key) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t raw, U32("a value's type"));
  if (raw > static_cast<uint32_t>(GgufValueType::kFloat64)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metadata '", absl::CHexEscape(key), "' has type ", raw, ", which GGUF does not define"));
  }
  return static_cast<GgufValueType>(raw);
}

absl::StatusOr<GgufValue> GgufCursor::Value(absl::string_view key) {
  GgufValue value;
  STRATA_ASSIGN_OR_RETURN(value.type, ValueType(key));
  if (value.type == GgufValueType::kArray) {
    value.is_array = true;
    STRATA_ASSIGN_OR_RETURN(value.type, ValueType(key));
    if (value.type == GgufValueType::kArray) {
      return absl::UnimplementedError(absl::StrCat("metadata '", absl::CHexEscape(key),
                                                   "' is an array of arrays, which is not "
                                                   "supported"));
    }
    STRATA_ASSIGN_OR_RETURN(value.count, U64("an array's length"));
  }
  value.at = here();
  STRATA_RETURN_IF_ERROR(SkipElements(value, key));
  return value;
}

absl::Status GgufCursor::SkipElements(const GgufValue& value, absl::string_view key) {
  // The count is compared before anything is multiplied or looped over: it is untrusted.
  const size_t smallest =
      value.type == GgufValueType::kString ? sizeof(uint64_t) : ElementBytes(value.type);
  if (value.count > remaining() / smallest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "truncated at offset ", offset_, ": metadata '", absl::CHexEscape(key), "' needs ",
        value.count, " values of type ", NameOf(value.type), ", ", remaining(), " bytes are left"));
  }
  if (value.type == GgufValueType::kString) {
    for (uint64_t i = 0; i < value.count; ++i) {
      STRATA_RETURN_IF_ERROR(String(kMaxStringBytes, "a string value").status());
    }
    return absl::OkStatus();
  }
  if (value.type == GgufValueType::kBool) {
    for (uint64_t i = 0; i < value.count; ++i) {
      const auto raw = static_cast<uint8_t>(value.at[i]);
      if (raw > 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "metadata '", absl::CHexEscape(key), "' is the bool ", raw, ", it must be 0 or 1"));
      }
    }
  }
  return Skip(value.count * smallest, "a value");
}

}  // namespace strata
