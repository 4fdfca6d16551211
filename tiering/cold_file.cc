#include "tiering/cold_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/aligned_buffer.h"
#include "base/crc32c.h"
#include "base/memory_limits.h"
#include "base/status_macros.h"

namespace strata::cold_file {
namespace {

using cold_format::kSectorBytes;
using cold_format::Superblock;

// Closes the file on the way out of a failed start, and removes it if this start created it.
class FileGuard {
 public:
  explicit FileGuard(std::string path) : path_(std::move(path)) {
    // O_NONBLOCK: a pipe at the path must not hang the start. It means nothing to a regular file.
    constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    fd_ = open(path_.c_str(), kFlags | O_CREAT | O_EXCL, 0600);
    created_ = fd_ >= 0;
    if (fd_ < 0 && errno == EEXIST) fd_ = open(path_.c_str(), kFlags);
  }
  FileGuard(const FileGuard&) = delete;
  FileGuard& operator=(const FileGuard&) = delete;
  ~FileGuard() {
    if (fd_ < 0) return;
    if (created_) unlink(path_.c_str());
    close(fd_);
  }
  int fd() const { return fd_; }
  int Keep() { return std::exchange(fd_, -1); }

 private:
  std::string path_;
  int fd_ = -1;
  bool created_ = false;
};

absl::Status Failed(const char* what, const std::string& path) {
  const int error = errno;
  const std::string message =
      absl::StrCat("cannot ", what, " the cold store ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(message);
  }
  return error == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
}

// A process killed a moment ago holds its lock until the kernel is done with its transfers, so a
// lock that is taken is asked for again for a while.
absl::Status Lock(int fd, const std::string& path) {
  constexpr int kAttemptsMax = 50;
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
    if (errno != EWOULDBLOCK && errno != EINTR) return Failed("lock", path);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the cold store ", path, " is in use by another process"));
}

absl::Status NotOurs(const std::string& path, const char* why) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " exists and is not a Strata cold store (", why,
                   "); it is left as it is: give another cold_path or remove it"));
}

std::string Describe(const cold_format::Identity& id) {
  return absl::StrCat("model ", absl::Hex(id.model_fingerprint, absl::kZeroPad16), ", basis ",
                      absl::Hex(id.basis_hash, absl::kZeroPad16), ", ", id.layers, " layers x ",
                      id.kv_heads, " heads x ", id.head_dim, ", page format ",
                      id.page_format_version);
}

// What becomes of a store found at the path: its records belong to a process that is gone, so they
// are dropped whatever they are; the note says whether they could ever have been read.
std::string Note(const Superblock& found, const Superblock& wanted) {
  if (found.crc != SectorCrc(&found)) {
    return "the superblock found was damaged; the store starts empty";
  }
  if (found.version != wanted.version) {
    return absl::StrCat("the store found has format version ", found.version, ", not ",
                        wanted.version, "; its records were dropped");
  }
  if (!(found.identity == wanted.identity) || found.warm != wanted.warm ||
      found.cold != wanted.cold) {
    return absl::StrCat("the store found holds other pages (", Describe(found.identity), "; now ",
                        Describe(wanted.identity), "); its records were dropped");
  }
  return "records of an earlier run were dropped";
}

// Reads and judges what lies at the path. Nullopt for an empty file.
absl::StatusOr<std::optional<Superblock>> ReadExisting(int fd, const std::string& path) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Failed("examine", path);
  if (!S_ISREG(info.st_mode)) return NotOurs(path, "not a regular file");
  if (info.st_size == 0) return std::optional<Superblock>();
  Superblock found;
  const ssize_t got = pread(fd, &found, sizeof(found), 0);
  if (got < 0) return Failed("read", path);
  if (got != static_cast<ssize_t>(sizeof(found))) return NotOurs(path, "too short");
  if (found.magic != cold_format::kSuperblockMagic) return NotOurs(path, "no superblock");
  return std::optional<Superblock>(found);
}

absl::Status CheckRoom(int fd, const std::string& path, uint64_t bytes) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Failed("examine", path);
  STRATA_ASSIGN_OR_RETURN(const AvailableBytes disk, AvailableDisk(path));
  // What an existing store occupies already is its own to reuse.
  const uint64_t fits = disk.bytes + uint64_t{512} * info.st_blocks;
  if (bytes > fits) {
    return absl::ResourceExhaustedError(absl::StrCat("cold_bytes ask for ", bytes, " bytes at ",
                                                     path, "; the disk has room for ", fits));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cold_bytes ask for a file of ", bytes, " bytes at ", path,
                     "; this process may write files of ", limit.rlim_cur, " (RLIMIT_FSIZE)"));
  }
  return absl::OkStatus();
}

absl::Status Preallocate(int fd, const std::string& path, uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  struct stat info {};
  if (fstat(fd, &info) != 0) return Failed("examine", path);
  if (info.st_size > size && ftruncate(fd, size) != 0) return Failed("shrink", path);
  int result = 0;
  do {
    result = fallocate(fd, 0, 0, size);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  if (errno != EOPNOTSUPP && errno != ENOSYS) return Failed("preallocate", path);
  // A file system without preallocation: blocks come as they are written, and a disk that fills
  // up meanwhile shows as failed writes.
  return ftruncate(fd, size) == 0 ? absl::OkStatus() : Failed("size", path);
}

absl::Status WriteSuperblock(int fd, const std::string& path, Superblock* superblock) {
  if (getrandom(&superblock->epoch, sizeof(superblock->epoch), 0) !=
      static_cast<ssize_t>(sizeof(superblock->epoch))) {
    return Failed("draw an epoch for", path);
  }
  superblock->crc = SectorCrc(superblock);
  if (pwrite(fd, superblock, sizeof(*superblock), 0) != static_cast<ssize_t>(sizeof(*superblock))) {
    return Failed("write", path);
  }
  return fsync(fd) == 0 ? absl::OkStatus() : Failed("sync", path);
}

// Turns O_DIRECT on if a direct read works; some file systems take the flag and then refuse reads.
// Leaves out O_NONBLOCK, with which io_uring fails requests on some file systems instead of
// waiting.
absl::StatusOr<bool> GoDirect(int fd, bool wanted) {
  STRATA_ASSIGN_OR_RETURN(AlignedBuffer sector, AlignedBuffer::Allocate(kSectorBytes));
  const int flags = fcntl(fd, F_GETFL) & ~O_NONBLOCK;
  fcntl(fd, F_SETFL, flags);
  if (!wanted || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return false;
  if (pread(fd, sector.data(), kSectorBytes, 0) == static_cast<ssize_t>(kSectorBytes)) return true;
  fcntl(fd, F_SETFL, flags);
  return false;
}

std::array<cold_format::LayerKinds, cold_format::kLayersMax> Kinds(
    const std::vector<TensorKinds>& layers) {
  std::array<cold_format::LayerKinds, cold_format::kLayersMax> kinds{};
  for (size_t i = 0; i < layers.size(); ++i) {
    kinds[i] = {static_cast<uint8_t>(layers[i].k), static_cast<uint8_t>(layers[i].v)};
  }
  return kinds;
}

}  // namespace

uint32_t SectorCrc(const void* sector) {
  return Crc32c(0, sector, kSectorBytes - sizeof(uint32_t));
}

Superblock MakeSuperblock(const cold_format::Identity& identity, const TierFormats& formats,
                          uint64_t record_bytes, uint64_t bytes_max) {
  Superblock superblock;
  superblock.identity = identity;
  superblock.record_bytes = record_bytes;
  superblock.record_count = static_cast<uint32_t>(cold_format::RecordsFor(bytes_max, record_bytes));
  superblock.warm = Kinds(formats.warm);
  superblock.cold = Kinds(formats.cold);
  return superblock;
}

absl::StatusOr<Opened> OpenForUse(const std::string& path, uint64_t bytes_max, bool direct,
                                  const Superblock& wanted) {
  FileGuard guard(path);
  const int fd = guard.fd();
  if (fd < 0) return Failed("open", path);
  STRATA_RETURN_IF_ERROR(Lock(fd, path));
  STRATA_ASSIGN_OR_RETURN(const std::optional<Superblock> found, ReadExisting(fd, path));
  Opened opened;
  opened.superblock = wanted;
  if (found.has_value()) opened.note = Note(*found, wanted);
  const uint64_t bytes = cold_format::FileBytes(wanted.record_count, wanted.record_bytes);
  STRATA_RETURN_IF_ERROR(CheckRoom(fd, path, bytes));
  if (fchmod(fd, 0600) != 0) return Failed("restrict", path);
  STRATA_RETURN_IF_ERROR(Preallocate(fd, path, bytes));
  STRATA_RETURN_IF_ERROR(WriteSuperblock(fd, path, &opened.superblock));
  STRATA_ASSIGN_OR_RETURN(opened.direct, GoDirect(fd, direct));
  opened.fd = guard.Keep();
  return opened;
}

}  // namespace strata::cold_file
