#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/half.h"
#include "base/status_macros.h"
#include "bench/cuda/suites.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_plan.h"
#include "tests/cuda/device_buffer.h"

namespace strata::bench {
namespace {

struct Subject {
  const char* name;
  KvKind k, v;
};
constexpr Subject kSubjects[] = {{"f16", KvKind::kF16, KvKind::kF16},
                                 {"i4", KvKind::kI4, KvKind::kI4},
                                 {"k4v2", KvKind::kI4, KvKind::kI2},
                                 {"i2", KvKind::kI2, KvKind::kI2}};
constexpr int kDistinct = 16;  // pages of different content

// Pages of one format, [page], in device memory and the first of them on the host.
struct Pages {
  PageFormat format;
  std::vector<std::byte> host;  // kDistinct pages
  std::unique_ptr<DeviceBuffer<std::byte>> device;
  int64_t count = 0;

  std::vector<KvPageView> Views(const std::byte* first, int64_t pages, int64_t period) const {
    std::vector<KvPageView> views;
    for (int64_t i = 0; i < pages; ++i) {
      const std::byte* page = first + format.Bytes() * (i % period);
      views.push_back({.base = page, .refine = page + format.BaseBytes()});
    }
    return views;
  }
};

absl::StatusOr<Pages> MakePages(const PageFormat& format, int64_t count) {
  const Backend reference = CreateReferenceBackend();
  const PageFormat f16{KvKind::kF16, KvKind::kF16, format.kv_heads, format.head_dim};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Half> source(f16.BaseBytes() / sizeof(Half));
  Pages pages{.format = format, .host = std::vector<std::byte>(format.Bytes() * kDistinct)};
  for (int i = 0; i < kDistinct; ++i) {
    for (Half& value : source) value = FloatToHalf(normal(random));
    std::byte* page = pages.host.data() + format.Bytes() * i;
    STRATA_RETURN_IF_ERROR(
        reference.codec->Encode(reinterpret_cast<const std::byte*>(source.data()), format, page,
                                page + format.BaseBytes()));
  }
  pages.count = count;
  pages.device = std::make_unique<DeviceBuffer<std::byte>>(format.Bytes() * count);
  for (int64_t i = 0; i < count; ++i) {
    STRATA_CUDA_OK(cudaMemcpy(pages.device->data() + format.Bytes() * i,
                              pages.host.data() + format.Bytes() * (i % kDistinct), format.Bytes(),
                              cudaMemcpyHostToDevice));
  }
  return pages;
}

PageRun Run(const PageFormat& format, const KvPageView* views, int64_t pages) {
  return {.stored = format,
          .read_k = format.k,
          .read_v = format.v,
          .first_block = 0,
          .page_count = static_cast<int32_t>(pages),
          .tokens = static_cast<int32_t>(pages) * kBlockTokens,
          .pages = views};
}

// One decode step of one layer: `sequences` sequences of `tokens` tokens, one query each.
class DecodeStep {
 public:
  // views: of all pages, sequence after sequence, readable by the device.
  DecodeStep(const AttentionShape& shape, const PageFormat& format, int sequences,
             const std::vector<KvPageView>& views, const std::vector<float>& q)
      : shape_(shape), q_(q), out_(q.size()) {
    const auto each = static_cast<int64_t>(views.size()) / sequences;
    std::vector<PageRun> runs;
    for (int i = 0; i < sequences; ++i) runs.push_back(Run(format, &views[each * i], each));
    std::vector<AttentionSequence> list;
    for (int i = 0; i < sequences; ++i) {
      list.push_back({.first_row = i,
                      .rows = 1,
                      .first_position = runs[i].tokens - 1,
                      .runs = absl::Span<const PageRun>(&runs[i], 1)});
    }
    const int64_t limit = cuda::AttentionStatesMin(sequences, shape.query_heads) * 64;
    cuda::PlanAttention(shape, list, limit, &lists_);
    pages_ = std::make_unique<DeviceBuffer<cuda::AttentionPage>>(lists_.pages);
    splits_ = std::make_unique<DeviceBuffer<cuda::AttentionSplit>>(lists_.splits);
    work_ = std::make_unique<DeviceBuffer<cuda::AttentionWork>>(lists_.work);
    tiles_ = std::make_unique<DeviceBuffer<cuda::AttentionTile>>(lists_.tiles);
    states_ = std::make_unique<DeviceBuffer<float>>(
        cuda::AttentionStateFloats(lists_.state_count, shape.head_dim));
  }

  void Enqueue(cudaStream_t stream) {
    cuda::AttentionLaunch launch = cuda::LaunchOf(shape_, lists_);
    launch.q = q_.data();
    launch.pages = pages_->data();
    launch.splits = splits_->data();
    launch.work = work_->data();
    launch.states = states_->data();
    STRATA_CUDA_OK(cuda::LaunchAttention(launch, stream));
    cuda::AttentionMerge merge = cuda::MergeOf(shape_, lists_);
    merge.tiles = tiles_->data();
    merge.states = states_->data();
    merge.out.o = out_.data();
    STRATA_CUDA_OK(cuda::LaunchAttentionMerge(merge, stream));
  }

  std::vector<float> Result() {
    STRATA_CUDA_OK(cudaDeviceSynchronize());
    return out_.Download();
  }

 private:
  const AttentionShape shape_;
  const DeviceBuffer<float> q_;
  DeviceBuffer<float> out_;
  cuda::AttentionLists lists_;
  std::unique_ptr<DeviceBuffer<cuda::AttentionPage>> pages_;
  std::unique_ptr<DeviceBuffer<cuda::AttentionSplit>> splits_;
  std::unique_ptr<DeviceBuffer<cuda::AttentionWork>> work_;
  std::unique_ptr<DeviceBuffer<cuda::AttentionTile>> tiles_;
  std::unique_ptr<DeviceBuffer<float>> states_;
};

std::vector<float> Queries(const AttentionShape& shape, int rows) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(shape.head_dim)));
  std::vector<float> q(size_t{1} * rows * shape.query_heads * shape.head_dim);
  for (float& value : q) value = normal(random);
  return q;
}

// Root mean square of the difference to the reference, relative to it, over kDistinct pages.
double ErrorAgainstReference(const AttentionShape& shape, const Pages& pages) {
  const std::vector<float> q = Queries(shape, 1);
  const std::vector<KvPageView> views = pages.Views(pages.host.data(), kDistinct, kDistinct);
  const PageRun run = Run(pages.format, views.data(), kDistinct);
  const AttentionSequence sequence{
      .first_row = 0, .rows = 1, .first_position = run.tokens - 1, .runs = {&run, 1}};
  PartialStates states;
  states.Reset(1, shape.query_heads, shape.head_dim);
  CreateReferenceBackend().attention->Attend(shape, q.data(), {&sequence, 1}, &states);
  std::vector<float> expected(q.size());
  FinishStates(states, expected.data());
  DecodeStep step(shape, pages.format, 1, pages.Views(pages.device->data(), kDistinct, pages.count),
                  q);
  step.Enqueue(nullptr);
  const std::vector<float> actual = step.Result();
  double error = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace

// Decode attention of one layer, pages in device memory. Every run goes round a set of pages that
// no cache holds.
absl::StatusOr<nlohmann::json> RunCudaAttention(const CudaBenchOptions& options) {
  const AttentionShape shape =
      options.smoke ? AttentionShape{4, 2, 64} : AttentionShape{32, 8, 128};
  STRATA_CUDA_OK(cuda::PrepareAttention(shape.head_dim));
  struct Load {
    int sequences;
    int64_t tokens;
  };
  const std::vector<Load> loads =
      options.smoke ? std::vector<Load>{{1, 64 * kDistinct}}
                    : std::vector<Load>{{1, 1024}, {1, 4096}, {1, 16384}, {1, 65536}, {16, 16384}};
  constexpr double kBeyondCaches = 256 << 20;
  nlohmann::json rows = nlohmann::json::array();
  for (const Subject& subject : kSubjects) {
    const PageFormat format{subject.k, subject.v, shape.kv_heads, shape.head_dim};
    double error = 0;
    for (const Load& load : loads) {
      const int64_t step_pages = load.sequences * load.tokens / kBlockTokens;
      const double step_bytes = static_cast<double>(format.Bytes()) * step_pages;
      const int steps = options.smoke ? 1 : static_cast<int>(std::ceil(kBeyondCaches / step_bytes));
      STRATA_ASSIGN_OR_RETURN(const Pages pages, MakePages(format, step_pages * steps));
      if (error == 0) error = ErrorAgainstReference(shape, pages);
      // int8 q and 7-bit p may add half of what I4 itself costs (0.06) at most.
      if (!(error < 0.03)) {
        return absl::InternalError(absl::StrCat(subject.name, ": attention is off by ", error,
                                                " of the reference, limit 0.03"));
      }
      std::vector<std::unique_ptr<DecodeStep>> layers;
      for (int i = 0; i < steps; ++i) {
        layers.push_back(std::make_unique<DecodeStep>(
            shape, format, load.sequences,
            pages.Views(pages.device->data() + format.Bytes() * step_pages * i, step_pages,
                        step_pages),
            Queries(shape, load.sequences)));
      }
      const double seconds = DeviceSeconds(options, nullptr,
                                           [&] {
                                             for (const auto& layer : layers)
                                               layer->Enqueue(nullptr);
                                           }) /
                             steps;
      rows.push_back({{"format", subject.name},
                      {"sequences", load.sequences},
                      {"tokens", load.tokens},
                      {"us", seconds * 1e6},
                      {"tokens_per_s", load.sequences * load.tokens / seconds},
                      {"bytes_per_s", step_bytes / seconds},
                      {"of_copy", step_bytes / seconds / options.copy_bytes_per_s},
                      {"relative_error_against_reference", error}});
    }
  }
  return nlohmann::json{{"query_heads", shape.query_heads},
                        {"kv_heads", shape.kv_heads},
                        {"head_dim", shape.head_dim},
                        {"rows", rows}};
}

}  // namespace strata::bench
