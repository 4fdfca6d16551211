#include "server/open_backend.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace strata {
namespace {

CpuBackendOptions CpuOptions(const DeviceSection& options) {
  CpuBackendOptions cpu;
  cpu.threads = options.threads;
  if (options.isa != "auto") cpu.force_isa = options.isa;
  return cpu;
}

absl::StatusOr<Backend> OpenCuda(const DeviceSection& options) {
  CudaBackendOptions cuda;
  cuda.device = options.device.cuda_index;
  cuda.cpu = CpuOptions(options);
  if (options.warm_attention == "device") cuda.warm_attention = WarmAttention::kDevice;
  if (options.warm_attention == "host") cuda.warm_attention = WarmAttention::kHost;
  if (options.gather_bytes.has_value()) cuda.gather_bytes = *options.gather_bytes;
  return CreateCudaBackend(cuda);
}

}  // namespace

absl::StatusOr<Backend> OpenBackend(const DeviceSection& options) {
  using Kind = DeviceChoice::Kind;
  if (options.device.kind == Kind::kCpu) return CreateCpuBackend(CpuOptions(options));
  auto cuda = OpenCuda(options);
  if (cuda.ok()) {
    spdlog::info("computing on {} ({})", cuda->name, cuda->device_name);
    return cuda;
  }
  if (options.device.kind == Kind::kCuda) {
    return absl::Status(cuda.status().code(),
                        absl::StrCat("device: ", FormatDevice(options.device),
                                     " cannot be used: ", cuda.status().message()));
  }
  STRATA_ASSIGN_OR_RETURN(Backend cpu, CreateCpuBackend(CpuOptions(options)));
  spdlog::info("computing on {}: no GPU can be used ({})", cpu.name,
               std::string(cuda.status().message()));
  return cpu;
}

std::vector<std::string> DevicesOf(const Backend& backend) {
  if (backend.device_name.empty()) return {"cpu"};
  return {absl::StrCat(backend.name, " ", backend.device_name)};
}

}  // namespace strata
