#include "kernels/cuda/codec_kernels.cuh"
#include "kernels/cuda/codec_launch.h"

namespace strata::cuda {
namespace {

bool Aligned(const void* p) { return p != nullptr && reinterpret_cast<uintptr_t>(p) % 64 == 0; }
bool Known(KvKind kind) { return BitsOf(kind) != 0; }

bool Valid(const PageFormat& format, const EncodePage& page) {
  return Known(page.k) && Known(page.v) && Aligned(page.source) && Aligned(page.base) &&
         (format.RefineBytes() == 0 || Aligned(page.refine));
}

EncodeJob JobOf(const PageFormat& format, const EncodePage& page) {
  return {page.source,
          page.base,
          page.refine,
          {page.k, page.v},
          {static_cast<uint32_t>(format.KRefine(0)), static_cast<uint32_t>(format.VRefine(0))},
          static_cast<uint32_t>(format.VHead(0))};
}

}  // namespace

cudaError_t LaunchEncodePages(int32_t kv_heads, int32_t head_dim, const EncodePage* pages,
                              int32_t count, uint32_t* reports, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (count < 0 || pages == nullptr || reports == nullptr || kv_heads > kEncodeHeadsMax ||
      !KvGeometry{1, kv_heads, head_dim}.Valid()) {
    return cudaErrorInvalidValue;
  }
  for (int32_t i = 0; i < count; ++i) {
    if (!Valid({pages[i].k, pages[i].v, kv_heads, head_dim}, pages[i])) {
      return cudaErrorInvalidValue;
    }
  }
  const cudaError_t cleared =
      cudaMemsetAsync(reports, 0xff, sizeof(*reports) * static_cast<size_t>(count), stream);
  if (cleared != cudaSuccess) return cleared;

  const PageFormat shape = {KvKind::kI4, KvKind::kI4, kv_heads, head_dim};
  EncodeParams params;
  params.head_dim = head_dim;
  params.v_group = shape.VGroup();
  params.kv_heads = kv_heads;
  params.reports = reports;
  const auto shared = static_cast<size_t>(EncodeSharedBytes(head_dim, shape.VGroups()));
  for (int32_t first = 0; first < count; first += kEncodePagesMax) {
    const int32_t n = count - first < kEncodePagesMax ? count - first : kEncodePagesMax;
    params.first_page = first;
    for (int32_t i = 0; i < n; ++i) {
      const EncodePage& page = pages[first + i];
      params.jobs[i] = JobOf({page.k, page.v, kv_heads, head_dim}, page);
    }
    const cudaError_t launched = gpu::Launch(
        EncodePagesKernel, dim3(static_cast<unsigned>(2 * kv_heads), static_cast<unsigned>(n)),
        dim3(kEncodeThreads), shared, stream, params);
    if (launched != cudaSuccess) return launched;
  }
  return cudaSuccess;
}

}  // namespace strata::cuda
