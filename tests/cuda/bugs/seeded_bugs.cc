// Runs one case: a seeded bug, or "good_..." for the same code without it.
//
//   seeded_bugs --list
//   seeded_bugs CASE SCHEDULE STREAMS
//
// Exit code 0: nothing was noticed; 1: the result is wrong; 99: no such case; anything else: a
// check of the executor's or a sanitizer's ended the process. run_bugs.py runs every case in every
// mode.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda/bugs/seeded_kernels.cuh"
#include "tests/cuda/device_buffer.h"
#include "tests/cuda/executor/control.h"

namespace strata {
namespace {

using Run = std::function<bool()>;  // whether the result is right

template <class T>
bool All(const std::vector<T>& values, const std::function<T(int)>& expected) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] == expected(static_cast<int>(i)))) return false;
  }
  return true;
}

// One block writes `threads` values.
template <class T, class... P, class... A>
bool OneBlock(void (*kernel)(T*, P...), int threads, const std::function<T(int)>& expected,
              A... arguments) {
  DeviceBuffer<T> out(std::vector<T>(static_cast<size_t>(threads)));
  STRATA_CUDA_OK(gpu::Launch(kernel, dim3(1), dim3(static_cast<unsigned>(threads)),
                             static_cast<size_t>(threads) * sizeof(T), nullptr, out.data(),
                             arguments...));
  return All<T>(out.Download(), expected);
}

template <Barrier kBarrier>
bool BlockReduce() {
  std::vector<float> in(1024);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 13);
  float sums[2] = {};
  for (size_t i = 0; i < in.size(); ++i) sums[i / 512] += in[i];
  DeviceBuffer<float> device_in(in), out(2);
  STRATA_CUDA_OK(gpu::Launch(BlockReduceKernel<kBarrier>, dim3(2), dim3(128), 128 * sizeof(float),
                             nullptr, device_in.data(), out.data(), 512));
  return All<float>(out.Download(), [&](int i) { return sums[i]; });
}

template <Barrier kBarrier>
bool WarpMerge() {
  DeviceBuffer<float> in(std::vector<float>(128, 1)), out(4);
  STRATA_CUDA_OK(gpu::Launch(WarpMergeKernel<kBarrier>, dim3(1), dim3(128), 0, nullptr, in.data(),
                             out.data()));
  return All<float>(out.Download(), [](int) { return 128.0f; });
}

template <TileBug kBug>
bool MmaTile() {
  constexpr int kDepth = 128;
  DeviceBuffer<__half> a(std::vector<__half>(16 * kDepth, __float2half(1)));
  DeviceBuffer<__half> b(std::vector<__half>(32 * kDepth, __float2half(1)));
  DeviceBuffer<float> out(16 * 32);
  STRATA_CUDA_OK(gpu::Launch(MmaTileKernel<kDepth, kBug>, dim3(1), dim3(128), 0, nullptr, a.data(),
                             b.data(), out.data()));
  return All<float>(out.Download(), [](int) { return float{kDepth}; });
}

bool VectorLoad(int offset) {
  DeviceBuffer<uint8_t> in(std::vector<uint8_t>(32 * 16 + 16));
  DeviceBuffer<int> out(32);
  STRATA_CUDA_OK(
      gpu::Launch(VectorLoadKernel, dim3(1), dim3(32), 0, nullptr, in.data(), out.data(), offset));
  return All<int>(out.Download(), [](int) { return 0; });
}

template <Increment kHow>
bool CountBlocks() {
  DeviceBuffer<int> count(std::vector<int>(1));
  STRATA_CUDA_OK(gpu::Launch(CountBlocksKernel<kHow>, dim3(8), dim3(32), 0, nullptr, count.data()));
  return count.Download()[0] == 8;
}

bool LastBlock() {
  DeviceBuffer<int> in(std::vector<int>(16, 3)), partial(16), out(1);
  DeviceBuffer<unsigned> ticket(std::vector<unsigned>(1));
  STRATA_CUDA_OK(gpu::Launch(LastBlockKernel, dim3(16), dim3(32), 0, nullptr, in.data(),
                             partial.data(), ticket.data(), out.data()));
  return out.Download()[0] == 48;
}

bool CopyNeverWaited() {
  DeviceBuffer<int4> in(32), out(32);
  STRATA_CUDA_OK(
      gpu::Launch(CopyNeverWaitedKernel, dim3(1), dim3(32), 0, nullptr, in.data(), out.data()));
  return true;
}

bool UseAfterFree() {
  int* data;
  STRATA_CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&data), 64 * sizeof(int)));
  STRATA_CUDA_OK(cudaFree(data));
  STRATA_CUDA_OK(gpu::Launch(GlobalWriteKernel, dim3(1), dim3(64), 0, nullptr, data, 0));
  return true;
}

bool HostReadsDeviceMemory() {
  DeviceBuffer<float> values(4);
  const volatile float* data = values.data();
  const float value = data[1];
  return value == value || true;
}

bool TooMuchSharedMemory() {  // more than 48 KiB needs cudaFuncSetAttribute
  DeviceBuffer<float> in(128), out(1);
  return gpu::Launch(BlockReduceKernel<Barrier::kPresent>, dim3(1), dim3(128), 64 << 10, nullptr,
                     in.data(), out.data(), 1) == cudaSuccess;
}

// 32 ones in pinned memory go to the device, are tripled and come back.
struct Pipeline {
  float* host;
  DeviceBuffer<float> device{32};
  cudaStream_t first, second;
  cudaEvent_t scaled;

  Pipeline() {
    STRATA_CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&host), 32 * sizeof(float)));
    for (int i = 0; i < 32; ++i) host[i] = 1;
    STRATA_CUDA_OK(cudaStreamCreate(&first));
    STRATA_CUDA_OK(cudaStreamCreate(&second));
    STRATA_CUDA_OK(cudaEventCreate(&scaled));
  }
  ~Pipeline() {
    STRATA_CUDA_OK(cudaDeviceSynchronize());
    STRATA_CUDA_OK(cudaFreeHost(host));
  }
  void Upload() {
    STRATA_CUDA_OK(
        cudaMemcpyAsync(device.data(), host, 32 * sizeof(float), cudaMemcpyHostToDevice, first));
  }
  void Scale() {
    STRATA_CUDA_OK(gpu::Launch(ScaleKernel, dim3(1), dim3(32), 0, first, device.data(), 3.0f));
  }
  void Download(cudaStream_t stream) {
    STRATA_CUDA_OK(
        cudaMemcpyAsync(host, device.data(), 32 * sizeof(float), cudaMemcpyDeviceToHost, stream));
  }
  bool Tripled() const {
    return All<float>(std::vector<float>(host, host + 32), [](int) { return 3.0f; });
  }
};

bool Synchronize(bool synchronize) {
  Pipeline pipeline;
  pipeline.Upload();
  pipeline.Scale();
  pipeline.Download(pipeline.first);
  if (synchronize) STRATA_CUDA_OK(cudaStreamSynchronize(pipeline.first));
  return pipeline.Tripled();
}

bool WaitForEvent(bool wait) {
  Pipeline pipeline;
  pipeline.Upload();
  pipeline.Scale();
  STRATA_CUDA_OK(cudaEventRecord(pipeline.scaled, pipeline.first));
  if (wait) STRATA_CUDA_OK(cudaStreamWaitEvent(pipeline.second, pipeline.scaled, 0));
  pipeline.Download(pipeline.second);
  STRATA_CUDA_OK(cudaStreamSynchronize(pipeline.second));
  return pipeline.Tripled();
}

// The event is recorded before the work that it should stand for.
bool RecordEarly(bool early) {
  Pipeline pipeline;
  pipeline.Upload();
  if (early) STRATA_CUDA_OK(cudaEventRecord(pipeline.scaled, pipeline.first));
  pipeline.Scale();
  if (!early) STRATA_CUDA_OK(cudaEventRecord(pipeline.scaled, pipeline.first));
  STRATA_CUDA_OK(cudaStreamWaitEvent(pipeline.second, pipeline.scaled, 0));
  pipeline.Download(pipeline.second);
  STRATA_CUDA_OK(cudaStreamSynchronize(pipeline.second));
  return pipeline.Tripled();
}

// The source of a copy that has not run yet is overwritten.
bool ReusePinned(bool synchronize) {
  Pipeline pipeline;
  pipeline.Upload();
  if (synchronize) STRATA_CUDA_OK(cudaStreamSynchronize(pipeline.first));
  for (int i = 0; i < 32; ++i) pipeline.host[i] = 7;
  pipeline.Scale();
  pipeline.Download(pipeline.first);
  STRATA_CUDA_OK(cudaStreamSynchronize(pipeline.first));
  return pipeline.Tripled();
}

float Index(int i) { return static_cast<float>(i); }

const std::map<std::string, Run>& Cases() {
  static const auto* cases = new std::map<std::string, Run>{
      {"reduce_missing_barrier", BlockReduce<Barrier::kMissing>},
      {"good_reduce", BlockReduce<Barrier::kPresent>},
      {"warp_merge_missing_barrier", WarpMerge<Barrier::kMissing>},
      {"good_warp_merge", WarpMerge<Barrier::kPresent>},
      {"tile_missing_cp_async_wait", MmaTile<TileBug::kNoWait>},
      {"tile_missing_barrier_before_reuse", MmaTile<TileBug::kNoBarrierBeforeReuse>},
      {"good_tile", MmaTile<TileBug::kNone>},
      {"static_shared_read_behind",
       [] { return OneBlock<int>(StaticSharedKernel, 64, std::identity(), 1); }},
      {"good_static_shared",
       [] { return OneBlock<int>(StaticSharedKernel, 64, std::identity(), 0); }},
      {"dynamic_shared_write_behind",
       [] { return OneBlock<int>(DynamicSharedKernel, 64, std::identity(), 1); }},
      {"good_dynamic_shared",
       [] { return OneBlock<int>(DynamicSharedKernel, 64, std::identity(), 0); }},
      {"global_write_behind",
       [] {
         return OneBlock<int>(
             GlobalWriteKernel, 64, [](int i) { return i > 0 ? i - 1 : 0; }, 1);
       }},
      {"global_read_behind",
       [] { return OneBlock<int>(GlobalReadKernel, 64, std::identity(), 64); }},
      {"good_global", [] { return OneBlock<int>(GlobalWriteKernel, 64, std::identity(), 0); }},
      {"uninitialized_shared",
       [] {
         return OneBlock<float>(
             UninitializedSharedKernel, 64, [](int) { return 64.0f; }, 5);
       }},
      {"good_initialized_shared",
       [] {
         return OneBlock<float>(
             UninitializedSharedKernel, 64, [](int) { return 64.0f; }, -1);
       }},
      {"divergent_barrier",
       [] {
         return OneBlock<float>(DivergentBarrierKernel, 64,
                                [](int i) { return i < 32 ? 2.0f : 1.0f; });
       }},
      {"barrier_in_half_the_block",
       [] { return OneBlock<float>(BarrierInHalfTheBlockKernel, 64, [](int) { return 1.0f; }); }},
      {"early_return_then_barrier",
       [] {
         return OneBlock<float>(EarlyReturnKernel, 64, [](int i) { return i < 40 ? 1.0f : 0.0f; });
       }},
      {"shuffle_full_mask_in_branch",
       [] {
         return OneBlock<float>(ShuffleInBranchKernel, 32,
                                [](int i) { return i < 16 ? Index(i + (i ^ 1)) : Index(i); });
       }},
      {"shuffle_reads_outside_mask",
       [] {
         return OneBlock<float>(ShuffleOutsideMaskKernel, 32,
                                [](int i) { return i < 8 ? Index(2 * i + 8) : Index(i); });
       }},
      {"misaligned_vector_load", [] { return VectorLoad(4); }},
      {"good_vector_load", [] { return VectorLoad(16); }},
      {"race_between_blocks", CountBlocks<Increment::kPlain>},
      {"good_atomic", CountBlocks<Increment::kAtomic>},
      {"missing_syncwarp",
       [] {
         return OneBlock<float>(NeighbourKernel<Barrier::kMissing>, 32,
                                [](int i) { return Index((i + 1) % 32); });
       }},
      {"good_syncwarp",
       [] {
         return OneBlock<float>(NeighbourKernel<Barrier::kPresent>, 32,
                                [](int i) { return Index((i + 1) % 32); });
       }},
      {"good_last_block", LastBlock},
      {"cp_async_never_waited", CopyNeverWaited},
      {"use_after_free", UseAfterFree},
      {"host_reads_device_memory", HostReadsDeviceMemory},
      {"shared_over_48k_without_attribute", TooMuchSharedMemory},
      {"missing_stream_synchronize", [] { return Synchronize(false); }},
      {"good_stream_synchronize", [] { return Synchronize(true); }},
      {"missing_event_wait", [] { return WaitForEvent(false); }},
      {"good_event_wait", [] { return WaitForEvent(true); }},
      {"event_recorded_too_early", [] { return RecordEarly(true); }},
      {"good_event_record", [] { return RecordEarly(false); }},
      {"pinned_source_reused", [] { return ReusePinned(false); }},
      {"good_pinned_reuse", [] { return ReusePinned(true); }},
  };
  return *cases;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const auto& [name, run] : strata::Cases()) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (argc != 4) return 99;
  const auto found = strata::Cases().find(argv[1]);
  if (found == strata::Cases().end()) return 99;
  if (!executor::SetSchedule(argv[2]) || !executor::SetStreams(argv[3])) return 99;
  return found->second() ? 0 : 1;
}
