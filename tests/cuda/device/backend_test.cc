// The interfaces of a CUDA backend against the reference: what lies between them and the kernels.
// The kernels themselves: tests/cuda/*_test.cc.

#include "kernels/backend.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/upload_ring.h"
#include "kernels/cuda/weights_cuda.h"
#include "tests/cuda/executor/control.h"
#include "tests/kernels/attention_test_util.h"
#include "tests/kernels/linear_testing.h"

namespace strata {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

Backend MakeCuda(WarmAttention warm = WarmAttention::kDevice) {
  auto backend = CreateCudaBackend({.device = 0,
                                    .warm_attention = warm,
                                    .gather_bytes = 0,
                                    .cpu = {.threads = 1, .force_isa = ""}});
  STRATA_CHECK(backend.ok());
  return *std::move(backend);
}

// Every test with streams that run as late as they may: a result read too early is not there yet.
class CudaBackendTest : public ::testing::Test {
 protected:
  CudaBackendTest() { STRATA_CHECK(executor::SetStreams("lazy:7")); }
  ~CudaBackendTest() override { executor::SetStreams("eager"); }

  template <typename T>
  T* Upload(const std::vector<T>& values) {
    buffers_.push_back(*backend_.memory->AllocateDevice(values.size() * sizeof(T)));
    EXPECT_TRUE(
        backend_.memory->Upload(values.data(), values.size() * sizeof(T), buffers_.back().data())
            .ok());
    return reinterpret_cast<T*>(buffers_.back().data());
  }
  template <typename T>
  std::vector<T> Download(const T* device, size_t count) {
    std::vector<T> values(count);
    const absl::Status status = backend_.memory->Download(device, count * sizeof(T), values.data());
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }
  static std::vector<float> Floats(size_t count, uint64_t seed) {
    return strata::testing::Random(seed).Floats(count);
  }

  Backend backend_ = MakeCuda();
  const Backend reference_ = CreateReferenceBackend();
  std::vector<Buffer> buffers_;
};

TEST_F(CudaBackendTest, MultipliesStackedMatricesWithBiasOntoWhatIsThere) {
  constexpr int32_t kIn = 64;
  constexpr int32_t kRows = 3;
  const auto a = strata::testing::MakeWeights(WeightType::kQ8_0, 48, kIn, 1);
  const auto b = strata::testing::MakeWeights(WeightType::kF16, 21, kIn, 2);
  std::vector<WeightSource> sources = {a.source, b.source};
  sources[0].data = a.bytes.data();
  sources[1].data = b.bytes.data();
  auto on_device = backend_.linear->Prepare(sources);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const auto expected_matrix = *reference_.linear->Prepare(sources);
  EXPECT_EQ((*on_device)->out_features(), 69);
  EXPECT_EQ((*on_device)->in_features(), kIn);
  ASSERT_TRUE(backend_.linear->Reserve(kRows, kIn).ok());

  const std::vector<float> x = Floats(kRows * kIn, 3);
  const std::vector<float> bias = Floats(69, 4);
  const std::vector<float> before = Floats(kRows * 69, 5);
  for (const bool accumulate : {false, true}) {
    float* y = Upload(before);
    backend_.linear->Matmul(**on_device, Upload(x), kRows, Upload(bias), accumulate, y);
    std::vector<float> expected = before;
    reference_.linear->Matmul(*expected_matrix, x.data(), kRows, bias.data(), accumulate,
                              expected.data());
    // 64 products of at most 1, each to 22 bits of the row's greatest.
    EXPECT_THAT(Download(y, expected.size()), Pointwise(FloatNear(1e-4f), expected));
  }

  const std::vector<int32_t> ids = {68, 0, 47, 48};
  float* rows = Upload(std::vector<float>(ids.size() * kIn));
  backend_.linear->EmbedRows(**on_device, ids, rows);
  std::vector<float> expected(ids.size() * kIn);
  reference_.linear->EmbedRows(*expected_matrix, ids, expected.data());
  EXPECT_EQ(Download(rows, expected.size()), expected);
}

TEST_F(CudaBackendTest, MatricesPassThroughASmallRingPieceByPiece) {
  constexpr int32_t kOut = 150;
  const auto weights = strata::testing::MakeWeights(WeightType::kQ4_0, kOut, 64, 1);
  WeightSource source = weights.source;
  source.data = weights.bytes.data();
  const auto device = *cuda::CudaDevice::Open(0);
  cuda::UploadRing ring(device);
  const auto matrix = cuda::CudaMatrix::Pack({&source, 1}, device, &ring, /*chunk_bytes=*/700);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_TRUE(device->Synchronize().ok());
  std::vector<int32_t> ids(kOut);
  for (int32_t i = 0; i < kOut; ++i) ids[i] = i;
  float* rows = Upload(std::vector<float>(kOut * 64));
  backend_.linear->EmbedRows(**matrix, ids, rows);
  std::vector<float> expected(kOut * 64);
  reference_.linear->EmbedRows(**reference_.linear->Prepare({&source, 1}), ids, expected.data());
  EXPECT_EQ(Download(rows, expected.size()), expected);
}

TEST_F(CudaBackendTest, SmallOperationsFollowEachOther) {
  const std::vector<float> x = Floats(5 * 32, 1);
  const std::vector<float> weight = Floats(32, 2);
  float* normed = Upload(std::vector<float>(5 * 32));
  float* picked = Upload(std::vector<float>(2 * 32));
  float* activated = Upload(std::vector<float>(2 * 16));
  backend_.linear->RmsNorm(Upload(x), Upload(weight), 5, 32, 1e-5f, normed);
  backend_.linear->GatherRows(normed, std::vector<int32_t>{1, 4}, 32, picked);
  backend_.linear->SwiGlu(picked, 2, 16, activated);
  std::vector<float> expected(5 * 32), rows(2 * 32), result(2 * 16);
  reference_.linear->RmsNorm(x.data(), weight.data(), 5, 32, 1e-5f, expected.data());
  reference_.linear->GatherRows(expected.data(), std::vector<int32_t>{1, 4}, 32, rows.data());
  reference_.linear->SwiGlu(rows.data(), 2, 16, result.data());
  EXPECT_THAT(Download(activated, result.size()), Pointwise(FloatNear(1e-5f), result));
}

// Two layers of one step share the angles; a new step has its own.
TEST_F(CudaBackendTest, AppendsRotatedKeysAndValuesToPages) {
  constexpr int32_t kDim = 32;
  constexpr int32_t kRows = 3;
  const PageFormat format{KvKind::kF16, KvKind::kF16, 1, kDim};
  std::vector<float> frequency(kDim / 2);
  for (int32_t i = 0; i < kDim / 2; ++i) frequency[i] = std::pow(10000.0f, -2.0f * i / kDim);
  const std::vector<float> scale = Floats(kDim, 9);
  RopeAppendArgs args;
  args.rows = kRows;
  args.query_heads = 2;
  args.kv_heads = 1;
  args.head_dim = kDim;
  args.rope = {RopeParams::Pairing::kHalves, kDim, nullptr, 1.0f};
  args.rotate_k = args.rotate_v = true;
  const float* device_frequency = Upload(frequency);
  const float* device_scale = Upload(scale);
  for (int32_t step = 0; step < 3; ++step) {
    const std::vector<float> qkv = Floats(kRows * 4 * kDim, 20 + step);
    // The second step's positions are the first one's: a layer of the same step.
    const int32_t first = step == 2 ? 11 : 5;
    const std::vector<int32_t> positions = {first, first + 1, first + 2};
    std::vector<std::byte> page(format.BaseBytes());
    std::byte* device_page = Upload(page);
    std::vector<AppendTarget> targets(kRows);
    std::vector<AppendTarget> device_targets(kRows);
    for (int32_t i = 0; i < kRows; ++i) {
      targets[i] = {page.data(), first + i};
      device_targets[i] = {device_page, first + i};
    }
    std::vector<float> q(kRows * 2 * kDim);
    float* device_q = Upload(q);
    args.positions = positions.data();
    args.qkv = qkv.data();
    args.rope.frequency = frequency.data();
    args.k_scale = scale.data();
    args.targets = targets.data();
    args.q = q.data();
    reference_.linear->RopeAppend(args);
    args.qkv = Upload(qkv);
    args.rope.frequency = device_frequency;
    args.k_scale = device_scale;
    args.targets = device_targets.data();
    args.q = device_q;
    backend_.linear->RopeAppend(args);
    device_targets.clear();  // the call has taken what it needs
    EXPECT_THAT(Download(device_q, q.size()), Pointwise(FloatNear(1e-5f), q)) << step;
    const std::vector<std::byte> appended = Download(device_page, page.size());
    for (size_t i = 0; i < page.size(); i += sizeof(Half)) {
      Half expected, actual;
      std::memcpy(&expected, &page[i], sizeof(Half));
      std::memcpy(&actual, &appended[i], sizeof(Half));
      ASSERT_NEAR(HalfToFloat(actual), HalfToFloat(expected), 4e-3f) << step << " at " << i;
    }
  }
}

TEST_F(CudaBackendTest, AnErrorOfALaunchComesOutOfTheStep) {
  float* x = Upload(Floats(64, 1));
  executor::FailNext("cudaLaunchKernel", cudaErrorLaunchFailure);
  backend_.linear->SwiGlu(x, 1, 16, x + 32);
  const absl::Status status = backend_.memory->Synchronize();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("LaunchSwiGlu failed: cudaErrorLaunchFailure"));
  EXPECT_TRUE(backend_.memory->Synchronize().ok());
}

// --- codec ---

class CudaCodecTest : public CudaBackendTest {
 protected:
  static constexpr int32_t kDim = 32;
  const PageFormat f16_{KvKind::kF16, KvKind::kF16, 2, kDim};

  std::vector<std::byte> Page(uint32_t seed) const {
    std::vector<std::byte> page(f16_.BaseBytes());
    TestRandom random(seed);
    for (size_t i = 0; i < page.size(); i += sizeof(Half)) {
      const Half half = FloatToHalf(random.Normal());
      std::memcpy(&page[i], &half, sizeof(half));
    }
    return page;
  }
};

TEST_F(CudaCodecTest, EncodesManyPagesAtOnceToTheReferencesBytes) {
  const std::pair<KvKind, KvKind> kinds[] = {{KvKind::kI4, KvKind::kI4},
                                             {KvKind::kI4, KvKind::kI2},
                                             {KvKind::kI2, KvKind::kI2},
                                             {KvKind::kF16, KvKind::kF16}};
  std::vector<PageEncode> pages;
  std::vector<std::vector<std::byte>> expected;
  std::vector<Buffer> slots;
  for (uint32_t i = 0; i < 12; ++i) {
    const PageFormat target{kinds[i % 4].first, kinds[i % 4].second, 2, kDim};
    const std::vector<std::byte> source = Page(i);
    slots.push_back(*backend_.memory->AllocatePinned(target.Bytes()));
    std::byte* base = slots.back().data();
    std::byte* refine = target.RefineBytes() > 0 ? base + target.BaseBytes() : nullptr;
    pages.push_back({Upload(source), target, base, refine});
    std::vector<std::byte>& bytes = expected.emplace_back(target.Bytes());
    ASSERT_TRUE(reference_.codec
                    ->Encode(source.data(), target, bytes.data(),
                             refine == nullptr ? nullptr : bytes.data() + target.BaseBytes())
                    .ok());
  }
  const absl::Status status = backend_.codec->EncodeAll(pages);
  ASSERT_TRUE(status.ok()) << status;
  // No Synchronize: the call is the fence.
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(std::memcmp(slots[i].data(), expected[i].data(), expected[i].size()), 0) << i;
  }
  std::vector<std::byte> fetched(f16_.BaseBytes());
  ASSERT_TRUE(backend_.codec->Fetch(pages[3].source, fetched.size(), fetched.data()).ok());
  EXPECT_EQ(fetched, Page(3));
}

TEST_F(CudaCodecTest, RefusesWhatIsNotFiniteInTheCpusWords) {
  std::vector<std::byte> page = Page(1);
  const Half infinity = FloatToHalf(INFINITY);
  std::memcpy(&page[f16_.VHead(1) + sizeof(Half) * VF16Index(kDim, 7, 5)], &infinity,
              sizeof(infinity));
  const PageFormat target{KvKind::kI4, KvKind::kI4, 2, kDim};
  Buffer slot = *backend_.memory->AllocatePinned(target.Bytes());
  std::byte* refine = slot.data() + target.BaseBytes();
  const absl::Status status = backend_.codec->Encode(Upload(page), target, slot.data(), refine);
  const absl::Status expected = reference_.codec->Encode(page.data(), target, slot.data(), refine);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status, expected);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor V, head 1, token 7, channel 5"));
}

}  // namespace
}  // namespace strata
