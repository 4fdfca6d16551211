#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/upload_ring.h"

namespace strata::cuda {

// Pages of host memory, gathered into device memory ahead of the kernels that attend to them: they
// cross the link once a layer, however many tiles of queries read them, and while the device
// computes what comes before. Kernels read a page's bytes where it was put: results are the same
// bits as from pages read in place.
//
// Gathering has a stream of its own. The host enqueues layers ahead of the device, and the buffer
// has two halves that layers take in turn: a layer's pages come while the layer before is attended
// to. What does not fit a half is read in place.
//
// One layer is: Stage; launches that read the pages; Passed. Engine thread.
class PageStage {
 public:
  explicit PageStage(std::shared_ptr<CudaDevice> device);
  ~PageStage();

  // `bytes` of device memory for the two halves together; 0: everything is read in place.
  // ResourceExhausted when they cannot be had. Once.
  absl::Status Reserve(size_t bytes);

  // `sequences` with what was gathered in place of the host's pages; launches enqueued on the
  // compute stream from now on find it there. Sequences of many rows come first where there is too
  // little room. Valid until the next Stage.
  absl::StatusOr<absl::Span<const AttentionSequence>> Stage(
      absl::Span<const AttentionSequence> sequences);
  // The launches that read the pages are enqueued: behind them the half may be filled again.
  absl::Status Passed();

 private:
  static size_t HostPages(absl::Span<const AttentionSequence> sequences);
  // Runs and views as they are, of this object, so that pages may be put elsewhere.
  void CopySequences(absl::Span<const AttentionSequence> sequences);
  void AddPages(const PageRun& run);
  const std::byte* Add(const std::byte* source, size_t bytes);
  absl::Status Gather();

  const std::shared_ptr<CudaDevice> device_;
  Stream stream_;
  UploadRing uploads_;  // lists of copies
  Buffer memory_;
  size_t half_bytes_ = 0;
  int half_ = 0;           // of the latest Stage
  bool gathered_ = false;  // by the latest Stage
  Event here_[2];          // what was gathered into the half is there
  Event passed_[2];        // the launches that read the half are through

  size_t used_ = 0;  // of the half
  std::vector<GatherCopy> copies_;
  std::vector<AttentionSequence> sequences_;
  std::vector<const AttentionSequence*> by_rows_;
  std::vector<PageRun> runs_;
  std::vector<KvPageView> views_;
};

}  // namespace strata::cuda
