#include "kernels/cuda/cuda_device.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace strata::cuda {
namespace {

// What O_DIRECT asks of memory that the disk fills; CUDA does not say how it aligns.
constexpr size_t kPinnedAlignment = 4096;

// Versions come as 1000 * major + 10 * minor.
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// How many devices there are, or why there can be none.
absl::StatusOr<int> CountDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  const absl::Status status = CudaStatus(error, "cudaGetDeviceCount");
  if (error != cudaErrorInsufficientDriver) return status;
  int driver = 0;
  int runtime = 0;
  // Both work without a driver, whose version is 0 then.
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::string why = driver == 0
                              ? std::string("this machine has no NVIDIA driver")
                              : absl::StrCat("the NVIDIA driver is for CUDA ", VersionText(driver),
                                             ", this program needs ", VersionText(runtime));
  return absl::Status(status.code(), absl::StrCat(why, " (", status.message(), ")"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Open(int index) {
  STRATA_ASSIGN_OR_RETURN(const int count, CountDevices());
  if (index < 0 || index >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no CUDA device ", index, "; this machine has ", count));
  }
  std::shared_ptr<CudaDevice> device(new CudaDevice);
  device->index_ = index;
  cudaDeviceProp properties{};
  STRATA_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, index));
  device->name_ = properties.name;
  if (properties.major < kMajorMin) {
    return absl::FailedPreconditionError(absl::StrCat(
        "CUDA device ", index, " (", device->name_, ") has compute capability ", properties.major,
        ".", properties.minor, "; ", kMajorMin, ".0 or later is needed"));
  }
  STRATA_RETURN_IF_ERROR(device->Bind());
  STRATA_ASSIGN_OR_RETURN(device->stream_, Stream::Create());
  return device;
}

absl::Status CudaDevice::Bind() const {
  STRATA_CUDA_RETURN_IF_ERROR(cudaSetDevice(index_));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CudaDevice::FreeBytes() const {
  STRATA_RETURN_IF_ERROR(Bind());
  size_t free_bytes = 0;
  size_t total = 0;
  STRATA_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total));
  return free_bytes;
}

absl::StatusOr<Buffer> CudaDevice::AllocateDevice(std::shared_ptr<CudaDevice> device,
                                                  size_t bytes) {
  if (bytes == 0) return Buffer();
  STRATA_ASSIGN_OR_RETURN(const uint64_t free_bytes, device->FreeBytes());
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, bytes); error != cudaSuccess) {
    const absl::Status status = CudaStatus(error, absl::StrCat("cudaMalloc(", bytes, " bytes)"));
    return absl::Status(status.code(), absl::StrCat(status.message(), "; ", free_bytes,
                                                    " bytes of device memory were free"));
  }
  Buffer buffer(static_cast<std::byte*>(data), bytes, [device](std::byte* p) { cudaFree(p); });
  const Stream& stream = device->stream();
  STRATA_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(data, 0, bytes, stream.get()));
  STRATA_RETURN_IF_ERROR(stream.Synchronize());
  return buffer;
}

absl::StatusOr<Buffer> CudaDevice::AllocatePinned(std::shared_ptr<CudaDevice> device,
                                                  size_t bytes) {
  if (bytes == 0) return Buffer();
  STRATA_RETURN_IF_ERROR(device->Bind());
  void* data = nullptr;
  const size_t taken = bytes + kPinnedAlignment - 1;
  if (const cudaError_t error =
          cudaHostAlloc(&data, taken, cudaHostAllocMapped | cudaHostAllocPortable);
      error != cudaSuccess) {
    return CudaStatus(error, absl::StrCat("cudaHostAlloc(", taken, " bytes)"));
  }
  const uintptr_t at = reinterpret_cast<uintptr_t>(data);
  auto* aligned = static_cast<std::byte*>(data) +
                  ((at + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment - at);
  Buffer buffer(aligned, bytes, [device, data](std::byte*) { cudaFreeHost(data); });
  std::memset(aligned, 0, bytes);
  return buffer;
}

void CudaDevice::Note(cudaError_t error, absl::string_view call) {
  if (error != cudaSuccess) Note(CudaStatus(error, call));
}

absl::Status CudaDevice::Synchronize() {
  Note(Bind());
  Note(stream_.Synchronize());
  return std::exchange(noted_, absl::OkStatus());
}

}  // namespace strata::cuda
