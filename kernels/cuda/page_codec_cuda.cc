#include "kernels/cuda/page_codec_cuda.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/codec_launch.h"
#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {
namespace {

// Pages of one launch; more go in several.
constexpr size_t kPagesMax = 256;

// A mutex makes "any thread" true; the mover is the only caller while serving. A call ends when the
// device has written everything: the event after the last copy is the fence between it and the
// host, and the thread that waits for it sleeps. Sources are blocks whose step is over, which the
// forward pass has waited for, so nothing of the compute stream needs to be waited for here.
class CudaPageCodec final : public PageCodec {
 public:
  explicit CudaPageCodec(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  absl::Status Initialize();

  absl::Status Encode(const std::byte* source, const PageFormat& target, std::byte* base,
                      std::byte* refine) const override {
    const PageEncode page = {source, target, base, refine};
    return EncodeAll({&page, 1});
  }
  absl::Status EncodeAll(absl::Span<const PageEncode> pages) const override;
  absl::Status Fetch(const std::byte* source, size_t bytes, std::byte* host) const override;

 private:
  absl::Status EncodeSome(absl::Span<const PageEncode> pages) const;
  absl::Status Wait() const;
  uint32_t* reports() const {
    return const_cast<uint32_t*>(reinterpret_cast<const uint32_t*>(reports_.data()));
  }
  uint32_t* host_reports() const {
    return const_cast<uint32_t*>(reinterpret_cast<const uint32_t*>(host_reports_.data()));
  }

  const std::shared_ptr<CudaDevice> device_;
  mutable std::mutex mutex_;
  Stream stream_;
  Event done_;
  Buffer reports_;       // device, kPagesMax
  Buffer host_reports_;  // pinned, kPagesMax
  mutable std::vector<EncodePage> pages_;
};

absl::Status CudaPageCodec::Initialize() {
  STRATA_RETURN_IF_ERROR(device_->Bind());
  STRATA_ASSIGN_OR_RETURN(stream_, Stream::Create());
  STRATA_ASSIGN_OR_RETURN(done_, Event::Create(Event::Wait::kSleep));
  constexpr size_t kBytes = kPagesMax * sizeof(uint32_t);
  STRATA_ASSIGN_OR_RETURN(reports_, CudaDevice::AllocateDevice(device_, kBytes));
  STRATA_ASSIGN_OR_RETURN(host_reports_, CudaDevice::AllocatePinned(device_, kBytes));
  return absl::OkStatus();
}

absl::Status CudaPageCodec::Wait() const {
  STRATA_RETURN_IF_ERROR(done_.Record(stream_));
  return done_.Synchronize();
}

absl::Status CudaPageCodec::EncodeAll(absl::Span<const PageEncode> pages) const {
  const std::lock_guard lock(mutex_);
  STRATA_RETURN_IF_ERROR(device_->Bind());
  for (size_t first = 0; first < pages.size(); first += kPagesMax) {
    STRATA_RETURN_IF_ERROR(EncodeSome(pages.subspan(first, kPagesMax)));
  }
  return absl::OkStatus();
}

absl::Status CudaPageCodec::EncodeSome(absl::Span<const PageEncode> pages) const {
  const PageFormat& shape = pages[0].target;
  pages_.clear();
  for (const PageEncode& page : pages) {
    STRATA_CHECK(page.target.kv_heads == shape.kv_heads && page.target.head_dim == shape.head_dim);
    pages_.push_back({page.source, page.base, page.refine, page.target.k, page.target.v});
  }
  const auto count = static_cast<int32_t>(pages_.size());
  STRATA_CUDA_RETURN_IF_ERROR(LaunchEncodePages(shape.kv_heads, shape.head_dim, pages_.data(),
                                                count, reports(), stream_.get()));
  STRATA_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(host_reports(), reports(), count * sizeof(uint32_t),
                                              cudaMemcpyDeviceToHost, stream_.get()));
  STRATA_RETURN_IF_ERROR(Wait());
  const uint32_t* refused = std::find_if(host_reports(), host_reports() + count,
                                         [](uint32_t report) { return report != kAllFinite; });
  if (refused == host_reports() + count) return absl::OkStatus();
  const NonFinite at = UnpackNonFinite(*refused);
  return absl::InvalidArgumentError(absl::StrCat("page value is not finite: tensor ",
                                                 at.v ? "V" : "K", ", head ", at.head, ", token ",
                                                 at.token, ", channel ", at.channel));
}

absl::Status CudaPageCodec::Fetch(const std::byte* source, size_t bytes, std::byte* host) const {
  const std::lock_guard lock(mutex_);
  STRATA_RETURN_IF_ERROR(device_->Bind());
  STRATA_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(host, source, bytes, cudaMemcpyDeviceToHost, stream_.get()));
  return Wait();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageCodec>> MakeCudaPageCodec(std::shared_ptr<CudaDevice> device) {
  auto codec = std::make_unique<CudaPageCodec>(std::move(device));
  STRATA_RETURN_IF_ERROR(codec->Initialize());
  return codec;
}

}  // namespace strata::cuda
