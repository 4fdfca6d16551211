#include "kernels/cuda/cuda_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/graph_recorder.h"

namespace strata::cuda {
namespace {

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  absl::StatusOr<Buffer> AllocateDevice(size_t bytes) override {
    return CudaDevice::AllocateDevice(device_, bytes);
  }
  absl::StatusOr<Buffer> AllocatePinned(size_t bytes) override {
    return CudaDevice::AllocatePinned(device_, bytes);
  }
  absl::StatusOr<Available> AvailableDevice() const override {
    STRATA_ASSIGN_OR_RETURN(const uint64_t free_bytes, device_->FreeBytes());
    return Available{free_bytes, absl::StrCat("cuda:", device_->index())};
  }
  bool host_accessible() const override { return false; }

  absl::Status Upload(const void* host, size_t bytes, void* device) override {
    STRATA_RETURN_IF_ERROR(device_->Bind());
    STRATA_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, device_->stream().get()));
    return device_->Synchronize();
  }
  absl::Status Download(const void* device, size_t bytes, void* host) override {
    STRATA_RETURN_IF_ERROR(device_->Bind());
    STRATA_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, device_->stream().get()));
    return device_->Synchronize();
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }
  std::unique_ptr<Recorder> MakeRecorder() override { return MakeGraphRecorder(device_); }

 private:
  const std::shared_ptr<CudaDevice> device_;
};

}  // namespace

std::unique_ptr<DeviceMemory> MakeCudaMemory(std::shared_ptr<CudaDevice> device) {
  return std::make_unique<CudaMemory>(std::move(device));
}

}  // namespace strata::cuda
