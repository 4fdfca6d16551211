#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/file_stamp.h"

namespace strata::rpc {

// The bearer tokens of one file, a line each, read again when the file changes: while a token is
// being replaced, the file has the old and the new one. Empty lines and lines that begin with #
// do not count. Any thread.
//
// S1: tokens are kept as SHA-256 digests and never leave this class, not in messages either.
// S2: comparing takes the same time whichever token matches, and whether one does.
// S3: a file that cannot be used is reported, and the tokens before it stay.
class BearerTokens {
 public:
  static constexpr size_t kTokensMax = 64;
  static constexpr size_t kTokenBytesMin = 16;
  static constexpr size_t kTokenBytesMax = 1024;

  // Called after every read but the first, with what came of it, under this object's lock.
  using Observer = std::function<void(const absl::Status&)>;

  // InvalidArgument naming the file, the line and the limit, never the token.
  static absl::StatusOr<std::unique_ptr<BearerTokens>> Load(const std::string& path,
                                                            Observer observer);

  bool Accepts(absl::string_view token);
  // Looks whether the file changed; Accepts does too.
  void Refresh();

 private:
  using Digest = std::array<unsigned char, 32>;

  BearerTokens(std::string path, Observer observer)
      : path_(std::move(path)), observer_(std::move(observer)) {}
  static Digest DigestOf(absl::string_view token);
  static absl::StatusOr<std::vector<Digest>> Read(const std::string& path);
  void RefreshLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const Observer observer_;
  absl::Mutex mutex_;
  FileStamp seen_ ABSL_GUARDED_BY(mutex_);
  std::vector<Digest> digests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace strata::rpc
