#include "server/rpc/tls_reloader.h"

#include "absl/memory/memory.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace strata::rpc {

absl::StatusOr<std::unique_ptr<TlsReloader>> TlsReloader::Load(const TlsFiles& files,
                                                               Observer observer) {
  auto reloader = absl::WrapUnique(new TlsReloader(files, std::move(observer)));
  absl::MutexLock lock(&reloader->mutex_);
  reloader->seen_ = reloader->Look();
  STRATA_ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsFiles(files, absl::Now()));
  reloader->current_ = std::make_shared<const TlsMaterial>(std::move(material));
  return reloader;
}

TlsReloader::Stamps TlsReloader::Look() const {
  return {FileStamp::Of(files_.certificate), FileStamp::Of(files_.key),
          FileStamp::Of(files_.client_ca)};
}

std::shared_ptr<const TlsMaterial> TlsReloader::Latest() {
  absl::MutexLock lock(&mutex_);
  // Looked at before reading: what changes while it is read is read again the next time.
  const Stamps now = Look();
  if (now == seen_) return current_;
  seen_ = now;
  absl::StatusOr<TlsMaterial> material = ReadTlsFiles(files_, absl::Now());
  observer_(material);
  if (material.ok()) current_ = std::make_shared<const TlsMaterial>(*std::move(material));
  return current_;
}

}  // namespace strata::rpc
