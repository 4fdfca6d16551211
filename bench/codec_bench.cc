#include <cstring>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "bench/measure.h"
#include "bench/suites.h"
#include "kernels/backend.h"
#include "server/config/format_name.h"

namespace strata::bench {

absl::StatusOr<nlohmann::json> RunCodec(const BenchOptions& options) {
  STRATA_ASSIGN_OR_RETURN(const Backend cpu, CreateCpuBackend({.threads = 1}));
  const Backend reference = CreateReferenceBackend();
  const PageFormat f16{KvKind::kF16, KvKind::kF16, options.kv_heads, options.head_dim};
  constexpr int kPages = 256;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Half> source(f16.BaseBytes() / sizeof(Half) * kPages);
  for (Half& value : source) value = FloatToHalf(normal(random));
  const auto page = [&](int i) {
    return reinterpret_cast<const std::byte*>(source.data()) + f16.BaseBytes() * i;
  };
  nlohmann::json rows = nlohmann::json::array();
  for (const char* name : {"i4", "k4v2", "i2"}) {
    STRATA_ASSIGN_OR_RETURN(const TensorKinds kinds, ParseFormatName(name));
    const PageFormat format{kinds.k, kinds.v, options.kv_heads, options.head_dim};
    std::vector<std::byte> out(format.Bytes() * kPages);
    std::vector<std::byte> expected(format.Bytes());
    const auto encode = [&](const PageCodec& codec, int i, std::byte* to) {
      return codec.Encode(page(i), format, to, to + format.BaseBytes());
    };
    for (int i = 0; i < kPages; ++i) {
      STRATA_RETURN_IF_ERROR(encode(*cpu.codec, i, out.data() + format.Bytes() * i));
      STRATA_RETURN_IF_ERROR(encode(*reference.codec, i, expected.data()));
      if (std::memcmp(expected.data(), out.data() + format.Bytes() * i, format.Bytes()) != 0) {
        return absl::InternalError(absl::StrCat(name, ": page ", i, " is not the reference's"));
      }
    }
    absl::Status status;
    const double seconds = MedianSeconds(options.runs, [&] {
      for (int i = 0; i < kPages; ++i) {
        status.Update(encode(*cpu.codec, i, out.data() + format.Bytes() * i));
      }
    });
    STRATA_RETURN_IF_ERROR(status);
    rows.push_back({{"format", name},
                    {"us_per_page", seconds * 1e6 / kPages},
                    {"source_bytes_per_s", f16.BaseBytes() * kPages / seconds}});
  }
  return nlohmann::json{
      {"benchmark", "codec"},         {"backend", cpu.name},          {"threads", 1},
      {"kv_heads", options.kv_heads}, {"head_dim", options.head_dim}, {"rows", rows}};
}

}  // namespace strata::bench
