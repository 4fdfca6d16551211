#include "model/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/gguf_value.h"

namespace strata {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 255;
constexpr uint32_t kMaxDims = 4;
// Bytes of the smallest entry, so that a count can be refused before memory is taken for it.
constexpr uint64_t kMinValueBytes = 8 + 1 + 4 + 1;           // key length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset

struct TensorTypeName {
  uint32_t id;  // as the file stores it
  absl::string_view name;
  std::optional<WeightType> type;  // absent: known by name only
};

constexpr TensorTypeName kTensorTypes[] = {
    {0, "F32", WeightType::kF32},    {1, "F16", WeightType::kF16},
    {2, "Q4_0", WeightType::kQ4_0},  {3, "Q4_1", WeightType::kQ4_1},
    {6, "Q5_0", WeightType::kQ5_0},  {7, "Q5_1", WeightType::kQ5_1},
    {8, "Q8_0", WeightType::kQ8_0},  {9, "Q8_1", std::nullopt},
    {10, "Q2_K", std::nullopt},      {11, "Q3_K", std::nullopt},
    {12, "Q4_K", WeightType::kQ4_K}, {13, "Q5_K", WeightType::kQ5_K},
    {14, "Q6_K", WeightType::kQ6_K}, {15, "Q8_K", std::nullopt},
    {16, "IQ2_XXS", std::nullopt},   {17, "IQ2_XS", std::nullopt},
    {18, "IQ3_XXS", std::nullopt},   {19, "IQ1_S", std::nullopt},
    {20, "IQ4_NL", std::nullopt},    {21, "IQ3_S", std::nullopt},
    {22, "IQ2_S", std::nullopt},     {23, "IQ4_XS", std::nullopt},
    {24, "I8", std::nullopt},        {25, "I16", std::nullopt},
    {26, "I32", std::nullopt},       {27, "I64", std::nullopt},
    {28, "F64", std::nullopt},       {29, "IQ1_M", std::nullopt},
    {30, "BF16", WeightType::kBF16}, {34, "TQ1_0", std::nullopt},
    {35, "TQ2_0", std::nullopt},     {39, "MXFP4", std::nullopt},
};

absl::StatusOr<WeightType> TensorType(uint32_t id, absl::string_view tensor) {
  for (const TensorTypeName& known : kTensorTypes) {
    if (known.id != id) continue;
    if (known.type.has_value()) return *known.type;
    return absl::UnimplementedError(absl::StrCat("tensor '", absl::CHexEscape(tensor),
                                                 "' has type ", known.name,
                                                 ", which is not supported"));
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor '", absl::CHexEscape(tensor),
                                                 "' has type ", id, ", which is not known"));
}

// Bytes of a tensor's data; `available` bounds it, so that nothing below can overflow.
absl::StatusOr<size_t> TensorBytes(const GgufTensor& tensor, uint64_t available) {
  const WeightTypeInfo& info = InfoOf(tensor.type);
  uint64_t blocks = tensor.dims[0] / info.block_values;
  if (tensor.dims[0] % info.block_values != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", absl::CHexEscape(tensor.name), "' of type ", info.name, " has rows of ",
        tensor.dims[0], " values, which must be a multiple of ", info.block_values));
  }
  const uint64_t limit = available / info.block_bytes;
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    const uint64_t factor = i == 0 ? 1 : tensor.dims[i];
    if (blocks > limit / factor) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", absl::CHexEscape(tensor.name), "' does not fit in the file: the ", available,
          " bytes after its offset hold ", limit, " blocks of type ", info.name));
    }
    blocks *= factor;
  }
  return blocks * info.block_bytes;
}

// The file's bytes, mapped read-only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }

  absl::Status Map(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open");
    absl::Status status = MapDescriptor(fd);
    close(fd);
    return status;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

 private:
  absl::Status MapDescriptor(int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, "cannot stat");
    if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("not a regular file");
    if (info.st_size == 0) return absl::InvalidArgumentError("the file is empty");
    void* data = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map");
    data_ = data;
    size_ = info.st_size;
    return absl::OkStatus();
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

class MappedGgufFile : public GgufFile {
 public:
  explicit MappedGgufFile(std::string path) : path_(std::move(path)) {}

  // Errors lack the path; Open adds it.
  absl::Status Parse();

  const std::string& path() const override { return path_; }
  bool Has(absl::string_view key) const override { return values_.contains(key); }
  absl::StatusOr<uint64_t> Uint(absl::string_view key) const override;
  absl::StatusOr<double> Float(absl::string_view key) const override;
  absl::StatusOr<bool> Bool(absl::string_view key) const override;
  absl::StatusOr<absl::string_view> String(absl::string_view key) const override;
  absl::StatusOr<std::vector<absl::string_view>> Strings(absl::string_view key) const override;
  absl::StatusOr<std::vector<int64_t>> Ints(absl::string_view key) const override;
  absl::StatusOr<std::vector<float>> Floats(absl::string_view key) const override;
  const std::vector<GgufTensor>& tensors() const override { return tensors_; }
  const GgufTensor* Find(absl::string_view name) const override;
  uint64_t Fingerprint() const override;
  void DropResidentPages() const override;

 private:
  absl::Status ParseHeader(GgufCursor* cursor, uint64_t* tensors, uint64_t* values);
  absl::Status ParseValues(GgufCursor* cursor, uint64_t count);
  absl::Status ParseTensors(GgufCursor* cursor, uint64_t count);
  absl::Status ParseTensor(GgufCursor* cursor, GgufTensor* tensor, uint64_t* offset);
  absl::Status PlaceTensors(size_t table_end, const std::vector<uint64_t>& offsets);
  absl::StatusOr<uint64_t> Alignment() const;

  absl::StatusOr<GgufValue> Get(absl::string_view key, bool array) const;
  absl::Status TypeError(absl::string_view key, const GgufValue& value,
                         absl::string_view wanted) const;

  std::string path_;
  Mapping mapping_;
  size_t data_start_ = 0;
  absl::flat_hash_map<absl::string_view, GgufValue> values_;  // keys lie in the mapping
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;  // keys are tensors_' names
};

absl::Status MappedGgufFile::Parse() {
  STRATA_RETURN_IF_ERROR(mapping_.Map(path_));
  GgufCursor cursor(mapping_.data(), mapping_.size());
  uint64_t tensors = 0;
  uint64_t values = 0;
  STRATA_RETURN_IF_ERROR(ParseHeader(&cursor, &tensors, &values));
  STRATA_RETURN_IF_ERROR(ParseValues(&cursor, values));
  return ParseTensors(&cursor, tensors);
}

absl::Status MappedGgufFile::ParseHeader(GgufCursor* cursor, uint64_t* tensors, uint64_t* values) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t magic, cursor->U32("the magic"));
  if (magic != kMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a GGUF file: it starts with 0x", absl::Hex(magic, absl::kZeroPad8)));
  }
  STRATA_ASSIGN_OR_RETURN(const uint32_t version, cursor->U32("the version"));
  if (version != 2 && version != 3) {
    const bool swapped = (version & 0xffffu) == 0;
    return absl::UnimplementedError(
        swapped ? "a big-endian GGUF file, which is not supported"
                : absl::StrCat("GGUF version ", version, ", supported are 2 and 3"));
  }
  STRATA_ASSIGN_OR_RETURN(*tensors, cursor->U64("the tensor count"));
  STRATA_ASSIGN_OR_RETURN(*values, cursor->U64("the metadata count"));
  if (*values > cursor->remaining() / kMinValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat(*values, " metadata entries cannot fit in the ",
                                                   cursor->remaining(), " bytes of the file"));
  }
  if (*tensors > cursor->remaining() / kMinTensorBytes) {
    return absl::InvalidArgumentError(absl::StrCat(*tensors, " tensors cannot fit in the ",
                                                   cursor->remaining(), " bytes of the file"));
  }
  return absl::OkStatus();
}

absl::Status MappedGgufFile::ParseValues(GgufCursor* cursor, uint64_t count) {
  values_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    STRATA_ASSIGN_OR_RETURN(const absl::string_view key,
                            cursor->String(kMaxKeyBytes, "a metadata key"));
    if (key.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("metadata entry ", i, " has an empty key"));
    }
    STRATA_ASSIGN_OR_RETURN(const GgufValue value, cursor->Value(key));
    if (!values_.emplace(key, value).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata '", absl::CHexEscape(key), "' appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status MappedGgufFile::ParseTensors(GgufCursor* cursor, uint64_t count) {
  tensors_.resize(count);
  std::vector<uint64_t> offsets(count);
  for (uint64_t i = 0; i < count; ++i) {
    STRATA_RETURN_IF_ERROR(ParseTensor(cursor, &tensors_[i], &offsets[i]));
    if (!tensor_index_.emplace(tensors_[i].name, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", absl::CHexEscape(tensors_[i].name), "' appears twice"));
    }
  }
  return PlaceTensors(cursor->offset(), offsets);
}

absl::Status MappedGgufFile::ParseTensor(GgufCursor* cursor, GgufTensor* tensor, uint64_t* offset) {
  STRATA_ASSIGN_OR_RETURN(const absl::string_view name,
                          cursor->String(kMaxTensorNameBytes, "a tensor's name"));
  if (name.empty()) return absl::InvalidArgumentError("a tensor has an empty name");
  tensor->name = std::string(name);
  STRATA_ASSIGN_OR_RETURN(const uint32_t dims, cursor->U32("a tensor's dimension count"));
  if (dims < 1 || dims > kMaxDims) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", absl::CHexEscape(name), "' has ",
                                                   dims, " dimensions, allowed are 1 to ",
                                                   kMaxDims));
  }
  for (uint32_t d = 0; d < dims; ++d) {
    STRATA_ASSIGN_OR_RETURN(const uint64_t size, cursor->U64("a tensor's dimension"));
    if (size < 1 || size > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", absl::CHexEscape(name), "' has dimension ", d, " of ", size,
                       ", allowed are 1 to ", std::numeric_limits<int32_t>::max()));
    }
    tensor->dims.push_back(static_cast<int64_t>(size));
  }
  STRATA_ASSIGN_OR_RETURN(const uint32_t type, cursor->U32("a tensor's type"));
  STRATA_ASSIGN_OR_RETURN(tensor->type, TensorType(type, name));
  STRATA_ASSIGN_OR_RETURN(*offset, cursor->U64("a tensor's offset"));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> MappedGgufFile::Alignment() const {
  if (!Has("general.alignment")) return kDefaultAlignment;
  STRATA_ASSIGN_OR_RETURN(const uint64_t alignment, Uint("general.alignment"));
  if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
    return absl::InvalidArgumentError(absl::StrCat("general.alignment is ", alignment,
                                                   ", it must be a power of two from 8 to ",
                                                   kMaxAlignment));
  }
  return alignment;
}

absl::Status MappedGgufFile::PlaceTensors(size_t table_end, const std::vector<uint64_t>& offsets) {
  STRATA_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
  const uint64_t start = (uint64_t{table_end} + alignment - 1) / alignment * alignment;
  data_start_ = std::min<uint64_t>(start, mapping_.size());
  const uint64_t available = mapping_.size() - data_start_;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    if (offsets[i] % alignment != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", absl::CHexEscape(tensor.name), "' is at offset ", offsets[i],
                       ", which is not a multiple of the alignment ", alignment));
    }
    if (offsets[i] > available) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", absl::CHexEscape(tensor.name), "' is at offset ", offsets[i],
                       ", the file has ", available, " bytes of tensor data"));
    }
    STRATA_ASSIGN_OR_RETURN(tensor.bytes, TensorBytes(tensor, available - offsets[i]));
    tensor.data = mapping_.data() + data_start_ + offsets[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> MappedGgufFile::Get(absl::string_view key, bool array) const {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": metadata '", key, "' is missing"));
  }
  if (it->second.is_array != array) {
    return TypeError(key, it->second, array ? "an array" : "a single value");
  }
  return it->second;
}

absl::Status MappedGgufFile::TypeError(absl::string_view key, const GgufValue& value,
                                       absl::string_view wanted) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata '", key, "' is ",
                                                 value.is_array ? "an array of " : "",
                                                 NameOf(value.type), ", expected ", wanted));
}

absl::StatusOr<uint64_t> MappedGgufFile::Uint(absl::string_view key) const {
  STRATA_ASSIGN_OR_RETURN(const GgufValue value, Get(key, false));
  if (!IsInteger(value.type)) return TypeError(key, value, "an integer");
  uint64_t result = 0;
  if (!ReadUnsigned(value.type, value.at, &result)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata '", key, "' is negative"));
  }
  return result;
}

absl::StatusOr<double> MappedGgufFile::Float(absl::string_view key) const {
  STRATA_ASSIGN_OR_RETURN(const GgufValue value, Get(key, false));
  if (value.type == GgufValueType::kFloat32) {
    float result;
    std::memcpy(&result, value.at, sizeof(result));
    return result;
  }
  if (value.type == GgufValueType::kFloat64) {
    double result;
    std::memcpy(&result, value.at, sizeof(result));
    return result;
  }
  return TypeError(key, value, "a float");
}

absl::StatusOr<bool> MappedGgufFile::Bool(absl::string_view key) const {
  STRATA_ASSIGN_OR_RETURN(const GgufValue value, Get(key, false));
  if (value.type != GgufValueType::kBool) return TypeError(key, value, "a bool");
  return *value.at != std::byte{0};
}

absl::StatusOr<absl::string_view> MappedGgufFile::String(absl::string_view key) const {
  STRATA_ASSIGN_OR_RETURN(const GgufValue value, Get(key, false));
  if (value.type != GgufValueType::kString) return TypeError(key, value, "a string");
  uint64_t length;
  std::memcpy(&length, value.at, sizeof(length));
  return absl::string_view(reinterpret_cast<const char*>(value.at + sizeof(length)), length);
}

absl::StatusOr<std::vector<absl::string_view>> MappedGgufFile::Strings(
    absl::string_view key) const {
  STRATA_ASSIGN_OR_RETURN(const GgufValue value, Get(key, true));
  if (value.type != GgufValueType::kString) return TypeError(key, value, "an array of string");
  std::vector<absl::string_view> result;
  result.reserve(value.count);
  const std::byte* at = value.at;
  for (uint64_t i = 0; i < value.count; ++i) {
    uint64_t length;
    std::memcpy(&length, at, sizeof(length));
    at += sizeof(length);
    result.emplace_back(reinterpret_cast<const char*>(at), length);
    at += length;
  }
  return result;
}

absl::StatusOr<std::vector<int64_t>> MappedGgufFile::Ints(absl::string_view key) const {
  STRATA_ASSIGN_OR_RETURN(const GgufValue value, Get(key, true));
  if (!IsInteger(value.type)) return TypeError(key, value, "an array of integers");
  std::vector<int64_t> result(value.count);
  for (uint64_t i = 0; i < value.count; ++i) {
    if (!ReadInteger(value.type, value.at + i * ElementBytes(value.type), &result[i])) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata '", key, "', element ", i,
                                                     ", is above ",
                                                     std::numeric_limits<int64_t>::max()));
    }
  }
  return result;
}

absl::StatusOr<std::vector<float>> MappedGgufFile::Floats(absl::string_view key) const {
  STRATA_ASSIGN_OR_RETURN(const GgufValue value, Get(key, true));
  if (value.type != GgufValueType::kFloat32) return TypeError(key, value, "an array of float32");
  std::vector<float> result(value.count);
  if (value.count > 0) std::memcpy(result.data(), value.at, value.count * sizeof(float));
  return result;
}

const GgufTensor* MappedGgufFile::Find(absl::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

uint64_t Fnv1a(uint64_t hash, const std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<uint8_t>(data[i])) * 0x100000001b3ULL;
  }
  return hash;
}

uint64_t MappedGgufFile::Fingerprint() const {
  // Everything ahead of the tensor data, then a few samples of every tensor: fine-tunes of one
  // model share all metadata, but differ all over their weights.
  constexpr size_t kSamples = 4;
  constexpr size_t kSampleBytes = 256;
  uint64_t hash = Fnv1a(0xcbf29ce484222325ULL, mapping_.data(), data_start_);
  for (const GgufTensor& tensor : tensors_) {
    const size_t bytes = std::min(kSampleBytes, tensor.bytes);
    for (size_t i = 0; i < kSamples; ++i) {
      const size_t offset = (tensor.bytes - bytes) / (kSamples - 1) * i;
      hash = Fnv1a(hash, tensor.data + offset, bytes);
    }
  }
  return hash;
}

void MappedGgufFile::DropResidentPages() const {
  // Advice only: the mapping is clean, so a later access reads the file again.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t start = (data_start_ + page - 1) / page * page;
  if (start < mapping_.size()) {
    madvise(mapping_.data() + start, mapping_.size() - start, MADV_DONTNEED);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  auto file = std::make_unique<MappedGgufFile>(path);
  if (absl::Status status = file->Parse(); !status.ok()) {
    // The getters name the file themselves.
    if (absl::StartsWith(status.message(), path)) return status;
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  return file;
}

}  // namespace strata
