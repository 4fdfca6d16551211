#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <variant>
#include <vector>

#include "base/bounded_queue.h"
#include "cache/ids.h"
#include "cache/layout/block_layout.h"
#include "cache/layout/record_layout.h"
#include "kernels/page_codec.h"
#include "tiering/cold_store.h"
#include "tiering/completion_queue.h"

namespace strata {

// Relative errors of one sampled page: rms(decoded - exact) / rms(exact), as the warm and the cold
// tier read it.
struct ErrorSample {
  struct Tensors {
    double k = 0;
    double v = 0;
  };
  bool taken = false;
  Tensors warm;
  Tensors cold;
};

// One block to encode from its hot to its warm slot.
struct EncodeJob final : Completion {
  EncodeJob() : Completion(Kind::kEncoded) {}
  BlockId block;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  bool refused = false;  // the content is not finite
  std::chrono::nanoseconds took{0};
  ErrorSample error;
};

// The thread that turns blocks into lower precisions, so that no step does: encodes hot blocks into
// warm slots, and gathers warm blocks into write buffers that it then hands to the cold store. It
// reads and writes only the slots its jobs name and keeps no other state; results come out of the
// completion queue.
class Mover {
 public:
  struct Layouts {
    const BlockLayout* hot = nullptr;
    const BlockLayout* warm = nullptr;
    const RecordLayout* record = nullptr;
  };

  // `store` may be null when nothing is ever written. Everything must outlive the mover.
  Mover(const PageCodec* codec, Layouts layouts, ColdStore* store, CompletionQueue* completions);
  // Finishes what is queued.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // False when the queue is full: try again later.
  bool Encode(EncodeJob* job) { return queue_.TryPush(job); }
  bool Write(ColdStore::WriteOp* op) { return queue_.TryPush(op); }

  static constexpr size_t kQueueMax = 512;

 private:
  using Job = std::variant<EncodeJob*, ColdStore::WriteOp*>;

  void Loop();
  void Run(EncodeJob* job);
  void Run(ColdStore::WriteOp* op);
  ErrorSample Sample(const EncodeJob& job, int32_t layer);
  // Of `exact_`, for the page of `job` decoded as these kinds.
  ErrorSample::Tensors ErrorsAs(const EncodeJob& job, int32_t layer, KvKind k, KvKind v);

  const PageCodec* const codec_;
  const Layouts layouts_;
  ColdStore* const store_;
  CompletionQueue* const completions_;
  BoundedQueue<Job> queue_;
  uint64_t encoded_ = 0;
  std::vector<PageEncode> pages_;   // of the block being encoded
  std::vector<std::byte> fetched_;  // an F16 page on the host
  std::vector<float> exact_;        // K then V of one page
  std::vector<float> decoded_;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace strata
