#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
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

// What one layer of a step attends to: the last `rows` tokens of each of `sequences` sequences, to
// all before them and to themselves. One row is decoding.
struct Load {
  int sequences;
  int64_t tokens;  // of a sequence
  int32_t rows;

  int64_t pages() const { return sequences * tokens / kBlockTokens; }
  // Tokens that the rows see, row by row.
  double seen() const {
    return static_cast<double>(sequences) * rows *
           (static_cast<double>(tokens) - (static_cast<double>(rows) - 1) / 2);
  }
};

class AttentionStep {
 public:
  // views: of all pages, sequence after sequence, readable by the device.
  AttentionStep(const AttentionShape& shape, const PageFormat& format, const Load& load,
                const std::vector<KvPageView>& views, const std::vector<float>& q)
      : shape_(shape), q_(q), out_(q.size()) {
    const int64_t each = load.pages() / load.sequences;
    std::vector<PageRun> runs;
    for (int i = 0; i < load.sequences; ++i) runs.push_back(Run(format, &views[each * i], each));
    std::vector<AttentionSequence> list;
    for (int i = 0; i < load.sequences; ++i) {
      list.push_back({.first_row = i * load.rows,
                      .rows = load.rows,
                      .first_position = runs[i].tokens - load.rows,
                      .runs = absl::Span<const PageRun>(&runs[i], 1)});
    }
    cuda::AttentionLimits limits;
    // As CudaAttention has them.
    limits.states = std::max<int64_t>(
        cuda::AttentionStatesMin(int64_t{1} * load.sequences * load.rows, shape.query_heads),
        16384);
    STRATA_CUDA_OK(cuda::PrepareAttention(shape.head_dim, &limits.device));
    cuda::PlanAttention(shape, list, limits, &lists_);
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
double ErrorAgainstReference(const AttentionShape& shape, const Pages& pages, int32_t rows) {
  const std::vector<float> q = Queries(shape, rows);
  const std::vector<KvPageView> views = pages.Views(pages.host.data(), kDistinct, kDistinct);
  const PageRun run = Run(pages.format, views.data(), kDistinct);
  const AttentionSequence sequence{
      .first_row = 0, .rows = rows, .first_position = run.tokens - rows, .runs = {&run, 1}};
  PartialStates states;
  states.Reset(rows, shape.query_heads, shape.head_dim);
  CreateReferenceBackend().attention->Attend(shape, q.data(), {&sequence, 1}, &states);
  std::vector<float> expected(q.size());
  FinishStates(states, expected.data());
  AttentionStep step(shape, pages.format, {1, run.tokens, rows},
                     pages.Views(pages.device->data(), kDistinct, pages.count), q);
  step.Enqueue(nullptr);
  const std::vector<float> actual = step.Result();
  double error = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

// int8 q and 7-bit p may add half of what I4 itself costs (0.06) at most.
absl::Status CheckError(const Subject& subject, double error) {
  if (error < 0.03) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(subject.name, ": attention is off by ", error, " of the reference, limit 0.03"));
}

// Seconds of one step. Every run goes round a set of pages that no cache holds.
absl::StatusOr<double> StepSeconds(const CudaBenchOptions& options, const AttentionShape& shape,
                                   const PageFormat& format, const Load& load, const Pages& pages) {
  const int64_t steps = pages.count / load.pages();
  std::vector<std::unique_ptr<AttentionStep>> layers;
  for (int64_t i = 0; i < steps; ++i) {
    const std::byte* first = pages.device->data() + format.Bytes() * load.pages() * i;
    layers.push_back(std::make_unique<AttentionStep>(shape, format, load,
                                                     pages.Views(first, load.pages(), load.pages()),
                                                     Queries(shape, load.sequences * load.rows)));
  }
  const auto enqueue = [&] {
    for (const auto& layer : layers) layer->Enqueue(nullptr);
  };
  return DeviceSeconds(options, nullptr, enqueue) / static_cast<double>(steps);
}

absl::StatusOr<nlohmann::json> Measure(const CudaBenchOptions& options, const AttentionShape& shape,
                                       const Subject& subject, const Load& load,
                                       int32_t checked_rows) {
  constexpr double kBeyondCaches = 256 << 20;
  const PageFormat format{subject.k, subject.v, shape.kv_heads, shape.head_dim};
  const double step_bytes = static_cast<double>(format.Bytes()) * load.pages();
  const bool prefill = load.rows > 1;  // waits for no memory
  const int64_t steps =
      options.smoke || prefill ? 1 : static_cast<int64_t>(std::ceil(kBeyondCaches / step_bytes));
  STRATA_ASSIGN_OR_RETURN(const Pages pages, MakePages(format, load.pages() * steps));
  const double error = ErrorAgainstReference(shape, pages, checked_rows);
  STRATA_RETURN_IF_ERROR(CheckError(subject, error));
  STRATA_ASSIGN_OR_RETURN(const double seconds, StepSeconds(options, shape, format, load, pages));
  nlohmann::json row = {{"format", subject.name},
                        {"sequences", load.sequences},
                        {"tokens", load.tokens},
                        {"us", seconds * 1e6},
                        {"relative_error_against_reference", error}};
  if (prefill) {
    row["rows"] = load.rows;
    // Of Q K and P V, two operations a multiply-add.
    row["flops_per_s"] = 4.0 * shape.head_dim * shape.query_heads * load.seen() / seconds;
  } else {
    row["tokens_per_s"] = load.sequences * load.tokens / seconds;
    row["bytes_per_s"] = step_bytes / seconds;
    row["of_copy"] = step_bytes / seconds / options.copy_bytes_per_s;
  }
  return row;
}

}  // namespace

// Attention of one layer, pages in device memory: decoding, a prompt, and pieces of longer ones.
absl::StatusOr<nlohmann::json> RunCudaAttention(const CudaBenchOptions& options) {
  const AttentionShape shape =
      options.smoke ? AttentionShape{4, 2, 64} : AttentionShape{32, 8, 128};
  const std::vector<Load> decode =
      options.smoke ? std::vector<Load>{{1, 64 * kDistinct, 1}}
                    : std::vector<Load>{
                          {1, 1024, 1}, {1, 4096, 1}, {1, 16384, 1}, {1, 65536, 1}, {16, 16384, 1}};
  const std::vector<Load> prefill =
      options.smoke ? std::vector<Load>{{1, 64 * kDistinct, 20}}
                    : std::vector<Load>{{1, 1024, 1024}, {1, 4096, 512}, {1, 16384, 512}};
  const auto measure_all = [&](const std::vector<Load>& loads, int32_t checked_rows,
                               nlohmann::json* rows) -> absl::Status {
    *rows = nlohmann::json::array();
    for (const Subject& subject : kSubjects) {
      for (const Load& load : loads) {
        STRATA_ASSIGN_OR_RETURN(nlohmann::json row,
                                Measure(options, shape, subject, load, checked_rows));
        rows->push_back(std::move(row));
      }
    }
    return absl::OkStatus();
  };
  nlohmann::json decode_rows, prefill_rows;
  STRATA_RETURN_IF_ERROR(measure_all(decode, 1, &decode_rows));
  STRATA_RETURN_IF_ERROR(measure_all(prefill, 20, &prefill_rows));
  return nlohmann::json{{"query_heads", shape.query_heads},
                        {"kv_heads", shape.kv_heads},
                        {"head_dim", shape.head_dim},
                        {"rows", std::move(decode_rows)},
                        {"prefill", std::move(prefill_rows)}};
}

}  // namespace strata::bench
