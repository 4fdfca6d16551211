#pragma once

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/file_stamp.h"
#include "server/rpc/tls_files.h"

namespace strata::rpc {

// The server's identity, read again whenever one of its files changes. Any thread.
//
// L1: what Latest gives has passed ReadTlsFiles; a pair that does not pass is reported, and the one
// before stays.
class TlsReloader {
 public:
  // Called after every read but the first, with what came of it, under this object's lock.
  using Observer = std::function<void(const absl::StatusOr<TlsMaterial>&)>;

  // The error of ReadTlsFiles where the files are not fit to start with.
  static absl::StatusOr<std::unique_ptr<TlsReloader>> Load(const TlsFiles& files,
                                                           Observer observer);

  // Looks at the files first: three stat calls, far less than the handshake it is for.
  std::shared_ptr<const TlsMaterial> Latest();
  bool asks_clients() const { return !files_.client_ca.empty(); }

 private:
  using Stamps = std::array<FileStamp, 3>;

  TlsReloader(TlsFiles files, Observer observer)
      : files_(std::move(files)), observer_(std::move(observer)) {}
  Stamps Look() const;

  const TlsFiles files_;
  const Observer observer_;
  absl::Mutex mutex_;
  Stamps seen_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const TlsMaterial> current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace strata::rpc
