#include "tests/cuda/attention_device.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace strata {
namespace {

// Bytes that the device can read, in either place.
class PlacedBytes {
 public:
  PlacedBytes(PagePlace place, const void* bytes, size_t count) : place_(place) {
    if (place == PagePlace::kDevice) {
      STRATA_CUDA_OK(cudaMalloc(&data_, count));
      STRATA_CUDA_OK(cudaMemcpy(data_, bytes, count, cudaMemcpyHostToDevice));
      device_ = data_;
    } else {
      STRATA_CUDA_OK(cudaHostAlloc(&data_, count, cudaHostAllocMapped));
      std::memcpy(data_, bytes, count);
      STRATA_CUDA_OK(cudaHostGetDevicePointer(&device_, data_, 0));
    }
  }
  ~PlacedBytes() { place_ == PagePlace::kDevice ? cudaFree(data_) : cudaFreeHost(data_); }
  PlacedBytes(const PlacedBytes&) = delete;
  PlacedBytes& operator=(const PlacedBytes&) = delete;

  const void* device() const { return device_; }

 private:
  const PagePlace place_;
  void* data_ = nullptr;
  void* device_ = nullptr;
};

using PlacedPages = std::map<const void*, std::unique_ptr<PlacedBytes>>;

void PlacePages(PagePlace place, absl::Span<const AttentionSequence> sequences,
                PlacedPages* placed) {
  const auto add = [&](const std::byte* bytes, size_t count) {
    if (bytes == nullptr || count == 0) return;
    std::unique_ptr<PlacedBytes>& copy = (*placed)[bytes];
    if (copy == nullptr) copy = std::make_unique<PlacedBytes>(place, bytes, count);
  };
  for (const AttentionSequence& sequence : sequences) {
    for (const PageRun& run : sequence.runs) {
      for (int32_t i = 0; i < run.page_count; ++i) {
        add(run.pages[i].base, run.stored.BaseBytes());
        add(run.pages[i].refine, run.stored.RefineBytes());
      }
    }
  }
}

template <class T>
std::unique_ptr<DeviceBuffer<T>> Upload(const std::vector<T>& values) {
  return std::make_unique<DeviceBuffer<T>>(values.empty() ? std::vector<T>(1) : values);
}

}  // namespace

void LaunchedAttention::Attend(const AttentionShape& shape, const float* q,
                               absl::Span<const AttentionSequence> sequences,
                               PartialStates* states) {
  ++calls_;
  int64_t rows = 0;
  for (const AttentionSequence& sequence : sequences) rows += sequence.rows;
  cuda::AttentionLimits limits;
  limits.states = cuda::AttentionStatesMin(rows, shape.query_heads) + spare_states_;
  STRATA_CUDA_OK(cuda::PrepareAttention(shape.head_dim, &limits.device));
  limits.device.prefill_queries = std::min(limits.device.prefill_queries, prefill_queries_max_);
  if (multiprocessors_ > 0) limits.device.multiprocessors = multiprocessors_;
  cuda::PlanAttention(shape, sequences, limits, &lists_);
  PlacedPages placed;
  PlacePages(place_, sequences, &placed);
  std::vector<cuda::AttentionPage> page_list = lists_.pages;
  for (cuda::AttentionPage& page : page_list) {
    page.base = placed.at(page.base)->device();
    if (page.refine != nullptr) page.refine = placed.at(page.refine)->device();
  }
  const size_t values = size_t{1} * states->rows * shape.query_heads;
  const auto queries = Upload(std::vector<float>(q, q + values * shape.head_dim));
  const auto pages = Upload(page_list);
  const auto splits = Upload(lists_.splits);
  const auto work = Upload(lists_.work);
  const auto tiles = Upload(lists_.tiles);
  DeviceBuffer<float> slots(
      std::max<size_t>(1, cuda::AttentionStateFloats(lists_.state_count, shape.head_dim)));
  // Reset never shrinks, so the vectors may be longer than the states.
  const auto o =
      Upload(std::vector<float>(states->o.begin(), states->o.begin() + values * shape.head_dim));
  const auto m = Upload(std::vector<float>(states->m.begin(), states->m.begin() + values));
  const auto l = Upload(std::vector<float>(states->l.begin(), states->l.begin() + values));

  cuda::AttentionLaunch launch = cuda::LaunchOf(shape, lists_);
  launch.q = queries->data();
  launch.pages = pages->data();
  launch.splits = splits->data();
  launch.work = work->data();
  launch.states = slots.data();
  STRATA_CUDA_OK(cuda::LaunchAttention(launch, nullptr));
  cuda::AttentionMerge merge = cuda::MergeOf(shape, lists_);
  merge.tiles = tiles->data();
  merge.states = slots.data();
  merge.other = {o->data(), m->data(), l->data()};
  DeviceBuffer<float> finished(std::vector<float>(std::max<size_t>(1, values * shape.head_dim)));
  merge.out = {finished.data(), nullptr, nullptr};
  STRATA_CUDA_OK(cuda::LaunchAttentionMerge(merge, nullptr));
  merge.out = merge.other;
  STRATA_CUDA_OK(cuda::LaunchAttentionMerge(merge, nullptr));
  STRATA_CUDA_OK(cudaDeviceSynchronize());
  finished_ = finished.Download();
  const std::vector<float> new_o = o->Download(), new_m = m->Download(), new_l = l->Download();
  std::copy_n(new_o.begin(), values * shape.head_dim, states->o.begin());
  std::copy_n(new_m.begin(), values, states->m.begin());
  std::copy_n(new_l.begin(), values, states->l.begin());
}

}  // namespace strata
