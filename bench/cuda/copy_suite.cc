#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "bench/cuda/suites.h"
#include "bench/measure.h"
#include "kernels/cuda/attention_launch.h"
#include "tests/cuda/device_buffer.h"

namespace strata::bench {
namespace {

class PinnedBytes {
 public:
  explicit PinnedBytes(size_t bytes) {
    STRATA_CUDA_OK(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped));
  }
  ~PinnedBytes() { cudaFreeHost(data_); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  char* data() { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

// Bytes of a page of INT4 of 8 KV heads of 128.
constexpr size_t kGatheredPage = size_t{72} << 10;

// Seconds that `bytes` of pages in pinned memory take to device memory by LaunchGather, or an error
// where they do not arrive.
absl::StatusOr<double> GatherSeconds(const CudaBenchOptions& options, const char* host,
                                     char* device, size_t bytes) {
  STRATA_CUDA_OK(cudaMemset(device, 0, bytes));
  std::vector<cuda::GatherCopy> copies;
  for (size_t at = 0; at < bytes; at += kGatheredPage) {
    copies.push_back({host + at, device + at, std::min(kGatheredPage, bytes - at)});
  }
  const DeviceBuffer<cuda::GatherCopy> list(copies);
  const double seconds = DeviceSeconds(options, nullptr, [&] {
    STRATA_CUDA_OK(cuda::LaunchGather(list.data(), static_cast<int32_t>(copies.size()), nullptr));
  });
  std::vector<char> arrived(bytes);
  STRATA_CUDA_OK(cudaMemcpy(arrived.data(), device, bytes, cudaMemcpyDeviceToHost));
  if (std::memcmp(arrived.data(), host, bytes) != 0) {
    return absl::InternalError("gathered bytes are not the source's");
  }
  return seconds;
}

}  // namespace

double DeviceSeconds(const CudaBenchOptions& options, cudaStream_t stream,
                     const std::function<void()>& enqueue) {
  cudaEvent_t begin, end;
  STRATA_CUDA_OK(cudaEventCreate(&begin));
  STRATA_CUDA_OK(cudaEventCreate(&end));
  std::vector<double> seconds;
  const int uncounted = options.smoke ? 0 : 2, runs = options.smoke ? 1 : 11;
  for (int i = 0; i < uncounted + runs; ++i) {
    STRATA_CUDA_OK(cudaEventRecord(begin, stream));
    enqueue();
    STRATA_CUDA_OK(cudaEventRecord(end, stream));
    STRATA_CUDA_OK(cudaEventSynchronize(end));
    float milliseconds = 0;
    STRATA_CUDA_OK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= uncounted) seconds.push_back(milliseconds / 1e3);
  }
  STRATA_CUDA_OK(cudaEventDestroy(begin));
  STRATA_CUDA_OK(cudaEventDestroy(end));
  return Median(seconds);
}

absl::StatusOr<nlohmann::json> RunCudaCopy(const CudaBenchOptions& options) {
  const size_t bytes = options.smoke ? 1 << 16 : size_t{1} << 30;
  const size_t link_bytes = bytes / 4;
  DeviceBuffer<char> from(bytes), to(bytes);
  PinnedBytes host(link_bytes);
  std::memset(host.data(), 0x5a, link_bytes);
  STRATA_CUDA_OK(cudaMemset(from.data(), 0x5a, bytes));
  const auto copy = [&](void* target, const void* source, size_t size, cudaMemcpyKind kind) {
    return DeviceSeconds(options, nullptr, [=] {
      STRATA_CUDA_OK(cudaMemcpyAsync(target, source, size, kind, nullptr));
    });
  };
  const double device = copy(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice);
  const double up = copy(to.data(), host.data(), link_bytes, cudaMemcpyHostToDevice);
  const double down = copy(host.data(), to.data(), link_bytes, cudaMemcpyDeviceToHost);
  for (size_t i = 0; i < link_bytes; i += 4093) {
    if (host.data()[i] != 0x5a) return absl::InternalError("copied bytes are not the source's");
  }
  STRATA_ASSIGN_OR_RETURN(const double gather,
                          GatherSeconds(options, host.data(), to.data(), link_bytes));
  return nlohmann::json{{"device_copy_bytes_per_s", 2 * bytes / device},
                        {"host_to_device_bytes_per_s", link_bytes / up},
                        {"device_to_host_bytes_per_s", link_bytes / down},
                        {"gather_bytes_per_s", link_bytes / gather}};
}

}  // namespace strata::bench
