#include <cstring>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "bench/cuda/suites.h"
#include "kernels/backend.h"
#include "kernels/cuda/codec_launch.h"
#include "tests/cuda/device_buffer.h"

namespace strata::bench {
namespace {

struct Subject {
  const char* name;
  KvKind k, v;
};
constexpr Subject kSubjects[] = {{"i4", KvKind::kI4, KvKind::kI4},
                                 {"k4v2", KvKind::kI4, KvKind::kI2},
                                 {"i2", KvKind::kI2, KvKind::kI2}};

}  // namespace

// Pages of one block after the other, in device memory; bytes are what is read and written.
absl::StatusOr<nlohmann::json> RunCudaCodec(const CudaBenchOptions& options) {
  const int32_t heads = options.smoke ? 1 : 8, dim = options.smoke ? 64 : 128;
  const int pages = options.smoke ? 2 : 2048;
  constexpr int kDistinct = 16;  // what is compared with the CPU's codec
  const PageFormat f16{KvKind::kF16, KvKind::kF16, heads, dim};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Half> source(f16.BaseBytes() / sizeof(Half) * kDistinct);
  for (Half& value : source) value = FloatToHalf(normal(random));
  const DeviceBuffer<Half> device_source(source);
  const Backend reference = CreateReferenceBackend();
  nlohmann::json rows = nlohmann::json::array();
  for (const Subject& subject : kSubjects) {
    const PageFormat format{subject.k, subject.v, heads, dim};
    DeviceBuffer<std::byte> out(format.Bytes() * pages);
    DeviceBuffer<uint32_t> reports(pages);
    std::vector<cuda::EncodePage> list(pages);
    for (int i = 0; i < pages; ++i) {
      const size_t offset = f16.BaseBytes() / sizeof(Half) * (i % kDistinct);
      list[i].source = reinterpret_cast<const std::byte*>(device_source.data() + offset);
      list[i].base = out.data() + format.Bytes() * i;
      if (format.RefineBytes() > 0) list[i].refine = list[i].base + format.BaseBytes();
      list[i].k = subject.k;
      list[i].v = subject.v;
    }
    const double seconds = DeviceSeconds(options, nullptr, [&] {
      STRATA_CUDA_OK(
          cuda::LaunchEncodePages(heads, dim, list.data(), pages, reports.data(), nullptr));
    });
    const std::vector<std::byte> bytes = out.Download();
    std::vector<std::byte> expected(format.Bytes());
    for (int i = 0; i < std::min(pages, kDistinct); ++i) {
      const auto* page = reinterpret_cast<const std::byte*>(source.data()) + f16.BaseBytes() * i;
      STRATA_RETURN_IF_ERROR(reference.codec->Encode(page, format, expected.data(),
                                                     expected.data() + format.BaseBytes()));
      if (std::memcmp(expected.data(), bytes.data() + format.Bytes() * i, format.Bytes()) != 0) {
        return absl::InternalError(
            absl::StrCat(subject.name, ": page ", i, " is not the reference's"));
      }
    }
    const double moved = static_cast<double>(f16.BaseBytes() + format.Bytes()) * pages;
    rows.push_back({{"format", subject.name},
                    {"us_per_page", seconds * 1e6 / pages},
                    {"bytes_per_s", moved / seconds},
                    {"of_copy", moved / seconds / options.copy_bytes_per_s}});
  }
  return nlohmann::json{{"kv_heads", heads}, {"head_dim", dim}, {"pages", pages}, {"rows", rows}};
}

}  // namespace strata::bench
