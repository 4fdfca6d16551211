#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "bench/cuda/suites.h"
#include "bench/measure.h"
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
  return nlohmann::json{{"device_copy_bytes_per_s", 2 * bytes / device},
                        {"host_to_device_bytes_per_s", link_bytes / up},
                        {"device_to_host_bytes_per_s", link_bytes / down}};
}

}  // namespace strata::bench
