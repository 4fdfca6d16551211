#include "kernels/cuda/sampler_cuda.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/sample_launch.h"
#include "kernels/cuda/upload_ring.h"

namespace strata::cuda {
namespace {

class CudaSampler final : public TokenSampler {
 public:
  explicit CudaSampler(std::shared_ptr<CudaDevice> device)
      : device_(std::move(device)), uploads_(device_) {}
  ~CudaSampler() override { device_->Synchronize().IgnoreError(); }  // its buffers may be in use

  absl::Status Reserve(int32_t rows, int32_t vocab_size) override {
    const size_t tokens = static_cast<size_t>(rows) * vocab_size;
    if (tokens <= tokens_) return absl::OkStatus();
    STRATA_RETURN_IF_ERROR(device_->Synchronize());
    STRATA_CUDA_RETURN_IF_ERROR(AllowSample());
    tokens_ = 0;
    STRATA_ASSIGN_OR_RETURN(logits_, CudaDevice::AllocateDevice(device_, tokens * sizeof(float)));
    STRATA_ASSIGN_OR_RETURN(weights_,
                            CudaDevice::AllocateDevice(device_, tokens * sizeof(uint64_t)));
    STRATA_RETURN_IF_ERROR(uploads_.Reserve(rows * sizeof(SampleRow)));
    tokens_ = tokens;
    return absl::OkStatus();
  }

  void Sample(const float* logits, int32_t vocab_size, absl::Span<const SampleRow> rows,
              absl::Span<const TokenEdit> edits, SampledRow* out) override {
    if (rows.empty()) return;
    SampleArgs args;
    args.logits = logits;
    args.vocab = vocab_size;
    args.count = static_cast<int32_t>(rows.size());
    args.out = out;
    if (absl::Status status = Place(rows, edits, &args); !status.ok()) {
      return device_->Note(std::move(status));
    }
    device_->Note(LaunchSample(args, device_->stream().get()), "LaunchSample");
  }

 private:
  // Fills in what lies on the device.
  absl::Status Place(absl::Span<const SampleRow> rows, absl::Span<const TokenEdit> edits,
                     SampleArgs* args) {
    STRATA_RETURN_IF_ERROR(Reserve(args->count, args->vocab));
    const UploadRing::Part parts[] = {{rows.data(), rows.size() * sizeof(SampleRow)},
                                      {edits.data(), edits.size() * sizeof(TokenEdit)}};
    const void* addresses[2];
    STRATA_RETURN_IF_ERROR(uploads_.Put(parts, absl::MakeSpan(addresses)));
    args->rows = static_cast<const SampleRow*>(addresses[0]);
    args->edits = static_cast<const TokenEdit*>(addresses[1]);
    args->scratch.logits = reinterpret_cast<float*>(logits_.data());
    args->scratch.weights = reinterpret_cast<uint64_t*>(weights_.data());
    return absl::OkStatus();
  }

  const std::shared_ptr<CudaDevice> device_;
  UploadRing uploads_;
  size_t tokens_ = 0;  // that the scratch has room for
  Buffer logits_;
  Buffer weights_;
};

}  // namespace

std::unique_ptr<TokenSampler> MakeCudaSampler(std::shared_ptr<CudaDevice> device) {
  return std::make_unique<CudaSampler>(std::move(device));
}

}  // namespace strata::cuda
