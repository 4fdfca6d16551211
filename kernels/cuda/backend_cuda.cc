#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/page_codec_cuda.h"
#include "kernels/cuda/sampler_cuda.h"

namespace strata {

absl::StatusOr<Backend> CreateCudaBackend(const CudaBackendOptions& options) {
  STRATA_ASSIGN_OR_RETURN(std::shared_ptr<cuda::CudaDevice> device,
                          cuda::CudaDevice::Open(options.device));
  STRATA_ASSIGN_OR_RETURN(Backend cpu, CreateCpuBackend(options.cpu));
  Backend backend;
  backend.name = absl::StrCat("cuda:", options.device);
  backend.device_name = device->name();
  backend.memory = cuda::MakeCudaMemory(device);
  backend.pool = std::move(cpu.pool);
  backend.linear = cuda::MakeCudaLinear(device);
  STRATA_ASSIGN_OR_RETURN(backend.codec, cuda::MakeCudaPageCodec(device));
  backend.attention = cuda::MakeCudaAttention(device, options.warm_attention, options.gather_bytes,
                                              std::move(cpu.attention));
  backend.sampler = cuda::MakeCudaSampler(device);
  return backend;
}

}  // namespace strata
