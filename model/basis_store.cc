#include "model/basis_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace strata {
namespace {

constexpr char kMagic[8] = {'S', 'T', 'R', 'A', 'T', 'A', 'K', 'B'};
constexpr uint32_t kVersion = 2;
constexpr uint32_t kRotateK = 1;
constexpr uint32_t kRotateV = 2;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t flags;
  uint32_t reserved;
  uint64_t fingerprint;
};
static_assert(sizeof(Header) == 40, "the file's header has no padding");

size_t ScaleCount(const KvGeometry& geometry) {
  return size_t{1} * geometry.layers * geometry.kv_heads * geometry.head_dim;
}

absl::Status Refuse(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("basis file ", path, " ", why));
}

// Closes on destruction; whoever must know about errors of close() uses Close().
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool Close() {
    const int fd = fd_;
    fd_ = -1;
    return close(fd) == 0;
  }

 private:
  int fd_;
};

// At most `limit` bytes, so that a huge file in the way costs nothing.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("basis file ", path));
  std::string bytes(limit, '\0');
  size_t size = 0;
  while (size < limit) {
    const ssize_t n = read(file.get(), bytes.data() + size, limit - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("basis file ", path));
    if (n == 0) break;
    size += n;
  }
  bytes.resize(size);
  return bytes;
}

absl::Status WriteAll(const std::string& path, absl::string_view bytes) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
  while (!bytes.empty()) {
    const ssize_t n = write(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    bytes.remove_prefix(n);
  }
  if (fsync(file.get()) != 0 || !file.Close()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KvMeasurement> ReadBasisFile(const std::string& path, uint64_t fingerprint,
                                            const KvGeometry& geometry) {
  const size_t scales = ScaleCount(geometry) * sizeof(float);
  const size_t content = sizeof(Header) + scales + geometry.layers * sizeof(float);
  const size_t expected = content + sizeof(uint32_t);
  STRATA_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, expected + 1));
  Header header;
  if (bytes.size() < sizeof(header) || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return Refuse(path, "is not a basis file");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != kVersion) {
    return Refuse(path, absl::StrCat("has version ", header.version, ", supported is ", kVersion));
  }
  if (header.fingerprint != fingerprint) return Refuse(path, "belongs to another model");
  if (static_cast<int64_t>(header.layers) != geometry.layers ||
      static_cast<int64_t>(header.kv_heads) != geometry.kv_heads ||
      static_cast<int64_t>(header.head_dim) != geometry.head_dim) {
    return Refuse(path, "belongs to a model of another shape");
  }
  if (bytes.size() != expected) {
    return Refuse(path, absl::StrCat("must have ", expected, " bytes and has ",
                                     bytes.size() > expected ? "more" : "fewer"));
  }
  uint32_t crc;
  std::memcpy(&crc, bytes.data() + content, sizeof(crc));
  if (crc != Crc32c(0, bytes.data(), content)) {
    return Refuse(path, "is damaged: its checksum differs");
  }
  KvBasis basis{geometry, (header.flags & kRotateK) != 0, (header.flags & kRotateV) != 0, {}};
  basis.k_scale.resize(ScaleCount(geometry));
  std::memcpy(basis.k_scale.data(), bytes.data() + sizeof(header), scales);
  for (const float scale : basis.k_scale) {
    if (!std::isfinite(scale) || scale <= 0)
      return Refuse(path, "has a scale that is not positive");
  }
  std::vector<float> k_errors(geometry.layers);
  std::memcpy(k_errors.data(), bytes.data() + sizeof(header) + scales,
              k_errors.size() * sizeof(float));
  for (const float error : k_errors) {
    if (!std::isfinite(error) || error < 0) {
      return Refuse(path, "has an error of K that is not a number from 0 on");
    }
  }
  return KvMeasurement{std::move(basis), std::move(k_errors)};
}

absl::Status WriteBasisFile(const std::string& path, uint64_t fingerprint,
                            const KvMeasurement& measured) {
  const KvBasis& basis = measured.basis;
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.layers = basis.geometry.layers;
  header.kv_heads = basis.geometry.kv_heads;
  header.head_dim = basis.geometry.head_dim;
  header.flags = (basis.rotate_k ? kRotateK : 0) | (basis.rotate_v ? kRotateV : 0);
  header.fingerprint = fingerprint;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(basis.k_scale.data()),
               basis.k_scale.size() * sizeof(float));
  bytes.append(reinterpret_cast<const char*>(measured.k_errors.data()),
               measured.k_errors.size() * sizeof(float));
  const uint32_t crc = Crc32c(0, bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof(crc));

  const std::filesystem::path target(path);
  std::error_code ignored;  // a directory that is missing shows when the file is created
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), ignored);
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  absl::Status status = WriteAll(temporary, bytes);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot rename to ", path));
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

std::vector<std::string> BasisFileCandidates(const std::string& model_path,
                                             const std::string& cache_dir, uint64_t fingerprint) {
  const std::filesystem::path model(model_path);
  const std::string name = absl::StrCat(model.filename().string(), ".",
                                        absl::Hex(fingerprint, absl::kZeroPad16), ".kvbasis");
  if (!cache_dir.empty()) return {(std::filesystem::path(cache_dir) / name).string()};
  std::vector<std::string> paths = {model_path + ".kvbasis"};
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path cache;
  if (xdg != nullptr && *xdg != '\0') {
    cache = xdg;
  } else if (home != nullptr && *home != '\0') {
    cache = std::filesystem::path(home) / ".cache";
  }
  if (!cache.empty()) paths.push_back((cache / "strata" / name).string());
  return paths;
}

}  // namespace strata
