#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tiering/cold_format.h"
#include "tiering/tier_options.h"

// The cold store's file as a file: creating, checking, locking, preallocating. Start-up only.
namespace strata::cold_file {

// CRC of a superblock or descriptor, whose last field it is.
uint32_t SectorCrc(const void* sector);

// The superblock of a new store of at most `bytes_max` bytes, but for its epoch and CRC.
cold_format::Superblock MakeSuperblock(const cold_format::Identity& identity,
                                       const TierFormats& formats, uint64_t record_bytes,
                                       uint64_t bytes_max);

struct Opened {
  int fd = -1;  // the caller's to close
  bool direct = false;
  std::string note;  // what was found at the path; empty for a new file
  cold_format::Superblock superblock;
};

// Creates or takes over the file, locks and preallocates it, and writes `wanted` with a new epoch.
absl::StatusOr<Opened> OpenForUse(const std::string& path, uint64_t bytes_max, bool direct,
                                  const cold_format::Superblock& wanted);

}  // namespace strata::cold_file
