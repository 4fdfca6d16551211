#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "tiering/cold_file.h"
#include "tiering/cold_store.h"
#include "tiering/tier_plan.h"

namespace strata {
namespace {

using cold_format::Descriptor;
using cold_format::Superblock;

class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;
  ~ReadOnlyFile() {
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Read(uint64_t offset, void* data, size_t bytes) const {
    const ssize_t got = fd_ < 0 ? -1 : pread(fd_, data, bytes, static_cast<off_t>(offset));
    if (got == static_cast<ssize_t>(bytes)) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot read ", bytes, " bytes at ", offset, " of ",
                                               path_, ": ",
                                               got < 0 ? std::strerror(errno) : "file ends"));
  }

 private:
  std::string path_;
  int fd_;
};

std::vector<TensorKinds> Layers(
    const std::array<cold_format::LayerKinds, cold_format::kLayersMax>& kinds, uint32_t layers) {
  std::vector<TensorKinds> result(layers);
  for (uint32_t i = 0; i < layers; ++i) {
    result[i] = {static_cast<KvKind>(kinds[i].k), static_cast<KvKind>(kinds[i].v)};
  }
  return result;
}

// The layout its superblock describes; FailedPrecondition if that makes no sense.
absl::StatusOr<RecordLayout> LayoutOf(const Superblock& superblock, const std::string& path) {
  const cold_format::Identity& id = superblock.identity;
  const KvGeometry geometry{static_cast<int32_t>(id.layers), static_cast<int32_t>(id.kv_heads),
                            static_cast<int32_t>(id.head_dim)};
  if (superblock.magic != cold_format::kSuperblockMagic ||
      superblock.crc != cold_file::SectorCrc(&superblock) ||
      superblock.version != cold_format::kVersion || !geometry.Valid() ||
      geometry.layers > cold_format::kLayersMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a Strata cold store of this version, or is damaged"));
  }
  const RecordLayout layout(PageFormats(geometry, Layers(superblock.cold, id.layers)),
                            id.unit_bytes);
  if (layout.bytes() != superblock.record_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " has records of ", superblock.record_bytes, " bytes, not ", layout.bytes()));
  }
  return layout;
}

bool DataIntact(const RecordLayout& layout, const Descriptor& descriptor, const std::byte* record) {
  for (int32_t i = 0; i < layout.groups(); ++i) {
    const RecordLayout::Group& group = layout.group(i);
    if (Crc32c(0, record + group.offset, group.bytes) != descriptor.group_crc[i]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<ColdInspection> ColdStore::Inspect(const std::string& path, bool verify) {
  const ReadOnlyFile file(path);
  Superblock superblock;
  STRATA_RETURN_IF_ERROR(file.Read(0, &superblock, sizeof(superblock)));
  STRATA_ASSIGN_OR_RETURN(const RecordLayout layout, LayoutOf(superblock, path));
  ColdInspection seen;
  seen.identity = superblock.identity;
  seen.record_bytes = superblock.record_bytes;
  std::vector<std::byte> record(verify ? layout.bytes() : 0);
  for (uint32_t i = 0; i < superblock.record_count; ++i) {
    Descriptor descriptor;
    STRATA_RETURN_IF_ERROR(
        file.Read(cold_format::DescriptorOffset(i), &descriptor, sizeof(descriptor)));
    if (descriptor.magic != cold_format::kDescriptorMagic) {
      seen.damaged_descriptors += descriptor.magic != 0 ? 1 : 0;
      continue;
    }
    if (descriptor.crc != cold_file::SectorCrc(&descriptor)) {
      ++seen.damaged_descriptors;
      continue;
    }
    if (descriptor.epoch != superblock.epoch) continue;
    ++seen.records;
    if (!verify) continue;
    STRATA_RETURN_IF_ERROR(
        file.Read(cold_format::RecordOffset(i, superblock.record_count, superblock.record_bytes),
                  record.data(), record.size()));
    if (!DataIntact(layout, descriptor, record.data())) ++seen.damaged_records;
  }
  seen.bytes = seen.records * seen.record_bytes;
  return seen;
}

}  // namespace strata
