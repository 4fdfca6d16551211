// The device's page codec: its bytes are those of the reference, scalar and AVX-512 codecs.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "kernels/backend.h"
#include "kernels/cuda/codec_launch.h"
#include "tests/cuda/device_buffer.h"

namespace strata {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kDims[] = {16, 64, 80, 96, 112, 128, 208, 256};

struct NamedKinds {
  const char* name;
  KvKind k, v;
};
constexpr NamedKinds kKinds[] = {
    {"F16", KvKind::kF16, KvKind::kF16},   {"I4", KvKind::kI4, KvKind::kI4},
    {"I2", KvKind::kI2, KvKind::kI2},      {"K4V2", KvKind::kI4, KvKind::kI2},
    {"K2V4", KvKind::kI2, KvKind::kI4},    {"KF16V4", KvKind::kF16, KvKind::kI4},
    {"K4VF16", KvKind::kI4, KvKind::kF16}, {"KF16V2", KvKind::kF16, KvKind::kI2},
    {"K2VF16", KvKind::kI2, KvKind::kF16}};

class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t Next() {
    state_ = state_ * 1664525u + 1013904223u;
    return state_ >> 8;
  }
  float Uniform() { return static_cast<float>(Next() & 0xffff) / 32768.0f - 1.0f; }
  float Normal() { return Uniform() + Uniform() + Uniform(); }

 private:
  uint32_t state_;
};

// Values that break careless codecs; `i` counts the values of the page.
struct Content {
  const char* name;
  std::function<float(Random*, int32_t i)> value;
};

std::vector<Content> Contents() {
  const auto either = [](float a, float b) {
    return [a, b](Random* r, int32_t) { return (r->Next() & 1) != 0 ? a : b; };
  };
  return {
      {"normal", [](Random* r, int32_t) { return r->Normal(); }},
      {"constant", [](Random*, int32_t) { return 3.14f; }},
      {"negative constant", [](Random*, int32_t) { return -0x1.8p-20f; }},
      {"zeros of both signs", either(-0.0f, 0.0f)},
      {"negative zeros", [](Random*, int32_t) { return -0.0f; }},
      {"subnormals",
       [](Random* r, int32_t) { return static_cast<float>(r->Next() % 7) * 0x1p-24f - 0x1p-23f; }},
      {"largest of both signs", either(65504.0f, -65504.0f)},
      // The range 65504 + 2^-24 does not fit binary32.
      {"range that binary32 rounds down", either(65504.0f, -0x1p-24f)},
      {"range that binary32 rounds up", either(-65504.0f, 0x1p-24f)},
      {"an outlier",
       [](Random* r, int32_t i) { return i % 61 == 0 ? 30000.0f : r->Normal() * 0.01f; }},
      {"far from zero", [](Random* r, int32_t) { return 1000.0f + r->Normal(); }},
      {"wide exponents",
       [](Random* r, int32_t) { return std::ldexp(r->Uniform(), int(r->Next() % 30) - 15); }},
      {"any finite bits",
       [](Random* r, int32_t) {
         const auto bits = static_cast<Half>(r->Next());
         return HalfToFloat(HalfIsFinite(bits) ? bits : static_cast<Half>(bits & 0x83ffu));
       }},
  };
}

std::vector<std::byte> F16Page(int32_t dim, const Content& content, uint32_t seed) {
  const PageFormat format{KvKind::kF16, KvKind::kF16, kHeads, dim};
  std::vector<std::byte> page(format.BaseBytes());
  Random random(seed);
  auto* halves = reinterpret_cast<Half*>(page.data());
  for (size_t i = 0; i < page.size() / sizeof(Half); ++i) {
    halves[i] = FloatToHalf(content.value(&random, static_cast<int32_t>(i)));
  }
  return page;
}

// Pinned host memory, where demotion writes; filled with ones, so that a byte left out is seen.
class PinnedBytes {
 public:
  explicit PinnedBytes(size_t size) {
    void* data = nullptr;
    STRATA_CUDA_OK(cudaHostAlloc(&data, size, cudaHostAllocMapped));
    data_ = static_cast<std::byte*>(data);
    std::memset(data_, 0xff, size);
  }
  ~PinnedBytes() { cudaFreeHost(data_); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  std::byte* data() { return data_; }

 private:
  std::byte* data_ = nullptr;
};

struct EncodedPage {
  std::vector<std::byte> bytes;  // BASE, then REFINE
  uint32_t report;
};

// Encodes source page i as kinds[i], one call; 64 bytes of ones must remain behind each region.
std::vector<EncodedPage> EncodeOnDevice(int32_t dim,
                                        const std::vector<std::vector<std::byte>>& sources,
                                        const std::vector<NamedKinds>& kinds) {
  const size_t slot = PageFormat{KvKind::kF16, KvKind::kF16, kHeads, dim}.BaseBytes() * 2;
  PinnedBytes slots(slot * sources.size());
  std::vector<std::unique_ptr<DeviceBuffer<std::byte>>> pages;
  std::vector<cuda::EncodePage> jobs;
  for (size_t i = 0; i < sources.size(); ++i) {
    pages.push_back(std::make_unique<DeviceBuffer<std::byte>>(sources[i]));
    const PageFormat format{kinds[i].k, kinds[i].v, kHeads, dim};
    std::byte* base = slots.data() + slot * i;
    jobs.push_back({pages.back()->data(), base,
                    format.RefineBytes() == 0 ? nullptr : base + format.BaseBytes() + 64,
                    kinds[i].k, kinds[i].v});
  }
  DeviceBuffer<uint32_t> reports(sources.size());
  EXPECT_EQ(cuda::LaunchEncodePages(kHeads, dim, jobs.data(), static_cast<int32_t>(jobs.size()),
                                    reports.data(), nullptr),
            cudaSuccess);
  const std::vector<uint32_t> downloaded = reports.Download();
  STRATA_CUDA_OK(cudaDeviceSynchronize());
  std::vector<EncodedPage> results;
  for (size_t i = 0; i < sources.size(); ++i) {
    const PageFormat format{kinds[i].k, kinds[i].v, kHeads, dim};
    const std::byte* base = slots.data() + slot * i;
    const std::byte* refine = base + format.BaseBytes() + 64;
    EncodedPage page{{base, base + format.BaseBytes()}, downloaded[i]};
    page.bytes.insert(page.bytes.end(), refine, refine + format.RefineBytes());
    for (size_t b = 0; b < 64; ++b) {
      EXPECT_EQ(base[format.BaseBytes() + b], std::byte{0xff}) << "past BASE";
      EXPECT_EQ(refine[format.RefineBytes() + b], std::byte{0xff}) << "past REFINE";
    }
    results.push_back(std::move(page));
  }
  return results;
}

std::vector<std::byte> EncodeOnHost(const PageCodec& codec, const std::vector<std::byte>& source,
                                    const PageFormat& format) {
  std::vector<std::byte> bytes(format.Bytes());
  EXPECT_TRUE(
      codec.Encode(source.data(), format, bytes.data(), bytes.data() + format.BaseBytes()).ok());
  return bytes;
}

// The host's codecs that this CPU can run.
std::vector<Backend> HostCodecs() {
  std::vector<Backend> backends;
  backends.push_back(CreateReferenceBackend());
  for (const char* isa : {"scalar", "avx512"}) {
    absl::StatusOr<Backend> backend = CreateCpuBackend({1, isa});
    if (backend.ok()) backends.push_back(*std::move(backend));
  }
  return backends;
}

TEST(CudaCodec, LargeGivesTheBytesOfEveryHostCodec) {
  const std::vector<Backend> hosts = HostCodecs();
  int64_t compared = 0;
  for (const int32_t dim : kDims) {
    for (const Content& content : Contents()) {
      std::vector<std::vector<std::byte>> sources;
      std::vector<NamedKinds> kinds;
      for (const NamedKinds& named : kKinds) {
        sources.push_back(F16Page(dim, content, static_cast<uint32_t>(dim + sources.size())));
        kinds.push_back(named);
      }
      const std::vector<EncodedPage> device = EncodeOnDevice(dim, sources, kinds);
      for (size_t i = 0; i < sources.size(); ++i) {
        ASSERT_EQ(device[i].report, cuda::kAllFinite);
        for (const Backend& host : hosts) {
          const PageFormat format{kinds[i].k, kinds[i].v, kHeads, dim};
          ASSERT_EQ(device[i].bytes, EncodeOnHost(*host.codec, sources[i], format))
              << kinds[i].name << ", head dim " << dim << ", " << content.name << ", " << host.name;
          ++compared;
        }
      }
    }
  }
  std::printf("%lld encoded pages compared\n", static_cast<long long>(compared));
}

TEST(CudaCodec, GivesTheBytesOfTheReference) {
  const Backend reference = CreateReferenceBackend();
  for (const int32_t dim : {64, 80}) {
    const std::vector<std::vector<std::byte>> sources = {F16Page(dim, Contents()[0], 5)};
    const std::vector<EncodedPage> device = EncodeOnDevice(dim, sources, {kKinds[3]});
    const PageFormat format{kKinds[3].k, kKinds[3].v, kHeads, dim};
    ASSERT_EQ(device[0].bytes, EncodeOnHost(*reference.codec, sources[0], format));
  }
}

// More pages than one launch takes, with different kinds.
TEST(CudaCodec, LargeBatchesAreSplit) {
  const Backend reference = CreateReferenceBackend();
  const int32_t dim = 64;
  std::vector<std::vector<std::byte>> sources;
  std::vector<NamedKinds> kinds;
  for (uint32_t i = 0; i < 131; ++i) {
    sources.push_back(F16Page(dim, Contents()[0], i));
    kinds.push_back(kKinds[i % std::size(kKinds)]);
  }
  const std::vector<EncodedPage> device = EncodeOnDevice(dim, sources, kinds);
  for (size_t i = 0; i < sources.size(); ++i) {
    const PageFormat format{kinds[i].k, kinds[i].v, kHeads, dim};
    ASSERT_EQ(device[i].report, cuda::kAllFinite) << i;
    ASSERT_EQ(device[i].bytes, EncodeOnHost(*reference.codec, sources[i], format)) << i;
  }
}

struct Place {
  bool v;
  int32_t head, token, channel;
};

void Put(int32_t dim, const Place& place, Half value, std::vector<std::byte>* page) {
  const PageFormat format{KvKind::kF16, KvKind::kF16, kHeads, dim};
  auto* halves = reinterpret_cast<Half*>(
      page->data() + (place.v ? format.VHead(place.head) : format.KHead(place.head)));
  halves[place.v ? VF16Index(dim, place.token, place.channel)
                 : KF16Index(dim, place.token, place.channel)] = value;
}

std::string Describe(uint32_t report) {
  const cuda::NonFinite at = cuda::UnpackNonFinite(report);
  return absl::StrCat("page value is not finite: tensor ", at.v ? "V" : "K", ", head ", at.head,
                      ", token ", at.token, ", channel ", at.channel);
}

// A batch of bad pages (one bad value or several) between good ones: each report says what the CPU
// codec says, and the good ones' bytes are right.
void ExpectReports(int32_t dim, const NamedKinds& named,
                   const std::vector<std::vector<Place>>& bad_places, Half bad) {
  const Backend host = CreateCpuBackend({1, "scalar"}).value();
  const PageFormat format{named.k, named.v, kHeads, dim};
  std::vector<std::vector<std::byte>> sources;
  for (const std::vector<Place>& places : bad_places) {
    sources.push_back(F16Page(dim, Contents()[0], 3));
    for (const Place& place : places) Put(dim, place, bad, &sources.back());
    sources.push_back(F16Page(dim, Contents()[0], 4));
  }
  const std::vector<EncodedPage> device =
      EncodeOnDevice(dim, sources, std::vector<NamedKinds>(sources.size(), named));
  std::vector<std::byte> scratch(format.Bytes());
  for (size_t i = 0; i < sources.size(); ++i) {
    const absl::Status status = host.codec->Encode(sources[i].data(), format, scratch.data(),
                                                   scratch.data() + format.BaseBytes());
    if (i % 2 == 1) {
      ASSERT_EQ(device[i].report, cuda::kAllFinite);
      ASSERT_EQ(device[i].bytes, scratch);
      continue;
    }
    ASSERT_FALSE(status.ok());
    ASSERT_NE(device[i].report, cuda::kAllFinite) << status;
    EXPECT_EQ(Describe(device[i].report), status.message()) << named.name;
  }
}

TEST(CudaCodec, ReportsAValueThatIsNotFinite) {
  ExpectReports(64, kKinds[1], {{{true, 1, 62, 63}, {false, 1, 62, 63}}}, 0x7e00);
}

TEST(CudaCodec, LargeNumbersOfValuesThatAreNotFinite) {
  int32_t cases = 0;
  for (const int32_t dim : {64, 80}) {
    std::vector<std::vector<Place>> places;
    for (const bool v : {false, true}) {
      for (const int32_t token : {0, 17, 63}) {
        for (const int32_t channel : {0, 15, dim - 1}) {
          places.push_back({{v, cases % kHeads, token, channel}});
          ++cases;
        }
      }
    }
    // Heads before tokens, tokens before channels, K before V.
    places.push_back({{true, 0, 63, 5}, {false, 1, 0, 0}});
    places.push_back({{false, 1, 9, 3}, {false, 1, 8, 4}, {true, 1, 8, 3}});
    places.push_back({{true, 0, 1, 1}, {false, 0, 1, 1}});
    for (const NamedKinds& named : {kKinds[0], kKinds[1], kKinds[5]}) {
      const Half bad[] = {0x7c00, 0xfc00, 0x7e00, 0xfc01};
      ExpectReports(dim, named, places, bad[cases++ % 4]);
    }
  }
}

TEST(CudaCodec, ReportsFitTheirWord) {
  // The last place of the most heads: kAllFinite is no place.
  const uint32_t head = cuda::kEncodeHeadsMax - 1;
  const uint32_t report = head << 15 | 63u << 9 | 255u << 1 | 1u;
  EXPECT_NE(report, cuda::kAllFinite);
  const cuda::NonFinite last = cuda::UnpackNonFinite(report);
  EXPECT_TRUE(last.v);
  EXPECT_EQ(last.head, cuda::kEncodeHeadsMax - 1);
  EXPECT_EQ(last.token, 63);
  EXPECT_EQ(last.channel, 255);
}

TEST(CudaCodec, RefusesWhatItCannotEncode) {
  const PageFormat format{KvKind::kI4, KvKind::kI4, kHeads, 64};
  DeviceBuffer<std::byte> source(format.BaseBytes() * 4), out(format.Bytes());
  DeviceBuffer<uint32_t> report(1);
  const cuda::EncodePage good = {source.data(), out.data(), out.data() + format.BaseBytes(),
                                 KvKind::kI4, KvKind::kI4};
  const auto launch = [&](int32_t heads, int32_t dim, cuda::EncodePage page) {
    return cuda::LaunchEncodePages(heads, dim, &page, 1, report.data(), nullptr);
  };
  EXPECT_EQ(launch(0, 64, good), cudaErrorInvalidValue);
  EXPECT_EQ(launch(kHeads, 72, good), cudaErrorInvalidValue);
  EXPECT_EQ(launch(kHeads, 272, good), cudaErrorInvalidValue);
  EXPECT_EQ(launch(cuda::kEncodeHeadsMax + 1, 64, good), cudaErrorInvalidValue);
  cuda::EncodePage bad = good;
  bad.k = static_cast<KvKind>(2);
  EXPECT_EQ(launch(kHeads, 64, bad), cudaErrorInvalidValue);
  bad = good;
  bad.base += 16;
  EXPECT_EQ(launch(kHeads, 64, bad), cudaErrorInvalidValue);
  bad = good;
  bad.refine = nullptr;
  EXPECT_EQ(launch(kHeads, 64, bad), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::LaunchEncodePages(kHeads, 64, nullptr, 0, nullptr, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace strata
