#include "kernels/cuda/warm_measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "base/status_macros.h"

namespace strata::cuda {
namespace {

// 4,096 tokens: enough pages to keep a link busy, few enough to be quick.
constexpr int32_t kPages = 64;
constexpr int kRounds = 5;

// Pages of zeros are valid: all codes 0, all parameters 0.
struct WarmPages {
  Buffer memory;
  std::vector<KvPageView> views;
  PageRun run;
};

absl::StatusOr<WarmPages> MakePages(const AttentionShape& shape,
                                    const std::shared_ptr<CudaDevice>& cuda) {
  WarmPages pages;
  pages.run.stored = {KvKind::kI4, KvKind::kI4, shape.kv_heads, shape.head_dim};
  const size_t bytes = pages.run.stored.Bytes();
  STRATA_ASSIGN_OR_RETURN(pages.memory, CudaDevice::AllocatePinned(cuda, kPages * bytes));
  for (int32_t i = 0; i < kPages; ++i) {
    const std::byte* base = pages.memory.data() + i * bytes;
    pages.views.push_back({base, base + pages.run.stored.BaseBytes(), 0});
  }
  pages.run.read_k = pages.run.read_v = KvKind::kI4;
  pages.run.page_count = kPages;
  pages.run.tokens = kPages * kBlockTokens;
  pages.run.pages = pages.views.data();
  return pages;
}

// Tokens a second of the quickest round; the first one only warms up.
template <typename Attend>
absl::StatusOr<double> Rate(const Attend& attend) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round <= kRounds; ++round) {
    const auto begun = std::chrono::steady_clock::now();
    STRATA_RETURN_IF_ERROR(attend());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (round > 0) best = std::min(best, took.count());
  }
  return kPages * kBlockTokens / std::max(best, 1e-9);
}

}  // namespace

absl::StatusOr<WarmAttentionFacts> MeasureWarmAttention(const AttentionShape& shape,
                                                        std::shared_ptr<CudaDevice> cuda,
                                                        AttentionBackend* device,
                                                        AttentionBackend* host) {
  STRATA_ASSIGN_OR_RETURN(const WarmPages pages, MakePages(shape, cuda));
  const AttentionSequence sequence = {0, 1, pages.run.tokens - 1, {&pages.run, 1}};
  const size_t width = size_t{1} * shape.query_heads * shape.head_dim;
  STRATA_ASSIGN_OR_RETURN(Buffer scratch,
                          CudaDevice::AllocateDevice(cuda, 2 * width * sizeof(float)));
  auto* q = reinterpret_cast<float*>(scratch.data());
  const std::vector<float> host_q(width);
  std::vector<float> host_out(width);

  WarmAttentionFacts facts;
  STRATA_ASSIGN_OR_RETURN(facts.device_tokens_per_s, Rate([&] {
                            device->AttendAll(shape, 1, q, {&sequence, 1}, q + width);
                            return cuda->Synchronize();
                          }));
  STRATA_ASSIGN_OR_RETURN(
      facts.host_tokens_per_s, Rate([&] {
        host->AttendAll(shape, 1, host_q.data(), {&sequence, 1}, host_out.data());
        return absl::OkStatus();
      }));
  facts.on_host = facts.host_tokens_per_s > facts.device_tokens_per_s;
  return facts;
}

}  // namespace strata::cuda
