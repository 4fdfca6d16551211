#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/device_memory.h"
#include "kernels/linear_ops.h"
#include "kernels/page_codec.h"
#include "kernels/token_sampler.h"

namespace strata {

// One device: its memory and its implementations of the kernel interfaces. Must outlive every
// buffer taken from it.
struct Backend {
  std::string name;         // "reference", "cpu/scalar", "cpu/avx2", "cpu/avx512", "cuda:0"
  std::string device_name;  // what a GPU calls itself; empty for a CPU
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<ThreadPool> pool;  // what the others share; null where they need none
  std::unique_ptr<LinearOps> linear;
  std::unique_ptr<PageCodec> codec;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<TokenSampler> sampler;  // null where logits lie on the host
};

struct CpuBackendOptions {
  int threads = 0;        // 0: one a usable CPU
  std::string force_isa;  // "", "scalar", "avx2" or "avx512"; empty reads STRATA_FORCE_ISA
};

// InvalidArgument for an unknown ISA name or a thread count out of range, FailedPrecondition naming
// the missing CPU feature for one this CPU lacks.
absl::StatusOr<Backend> CreateCpuBackend(const CpuBackendOptions& options);

// Who attends to warm and cold pages, which lie in host memory: the GPU over the link, or the CPU
// where they lie. kAuto measures both once the model's shape is known, and keeps the faster one.
enum class WarmAttention : uint8_t { kAuto, kDevice, kHost };

// Room for a layer's INT4 pages of some 60,000 tokens of a model with 8 KV heads of 128, twice.
inline constexpr size_t kGatherBytesDefault = size_t{128} << 20;

struct CudaBackendOptions {
  int device = 0;
  WarmAttention warm_attention = WarmAttention::kAuto;
  // Device memory in which pages of host memory are gathered a layer ahead of the GPU's attention
  // to them. 0: the GPU reads them in place, over the link, once for every tile of queries. Not
  // taken where the CPU attends to them.
  size_t gather_bytes = kGatherBytesDefault;
  CpuBackendOptions cpu;  // what attends to pages in host memory
};

// FailedPrecondition when this build has no CUDA support, the machine no driver or no such device,
// or the device is too old. The message is one sentence for an operator.
absl::StatusOr<Backend> CreateCudaBackend(const CudaBackendOptions& options);

// Scalar, double accumulators, no int8 activations: the oracle of every other backend.
Backend CreateReferenceBackend();

// Prepares matrices that have the size a CPU backend gives them and no bytes, for planning; their
// data is not read. Every computation is a CHECK.
std::unique_ptr<LinearOps> CreateSizingLinear();

}  // namespace strata
