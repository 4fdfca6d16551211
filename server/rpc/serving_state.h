#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "model/tokenizer.h"
#include "server/engine/engine.h"

namespace strata::rpc {

// A loaded model and the engine that runs it. Both outlive the server.
struct ServedModel {
  std::string name;  // what clients call it
  std::string architecture;
  std::string weight_format;
  uint64_t weight_bytes = 0;
  uint64_t fingerprint = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // tokens a sequence may have here
  size_t longest_token = 0;    // bytes; bounds what a context can hold
  const Tokenizer* tokenizer = nullptr;
  Engine* engine = nullptr;
};

size_t LongestToken(const Tokenizer& tokenizer);

// A call that a drain waits for, and ends when it takes too long.
class DrainedCall {
 public:
  virtual ~DrainedCall() = default;
  // Any thread; must not block. The call still leaves by itself.
  virtual void Abort(const absl::Status& status) = 0;
};

// Whether the server is loading, serving or draining, and the generations in flight. Any thread.
//
// At most `calls_max` generations are in at once, whatever becomes of them.
//
// R1: a call that entered is waited for by AwaitIdle until it leaves. R2: after BeginDrain none
// enters.
class ServingState {
 public:
  explicit ServingState(size_t calls_max = 4096) : calls_max_(calls_max) {}

  void Publish(ServedModel model);  // once
  void BeginDrain();

  bool ready() const;
  bool draining() const;

  // UNAVAILABLE with RetryInfo while loading; null never.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Model() const;
  // For work on the model: by the name a request gives it ("": the one there is), NOT_FOUND for
  // another, and UNAVAILABLE while draining too.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Find(const std::string& name) const;

  // UNAVAILABLE with RetryInfo while draining; RESOURCE_EXHAUSTED above calls_max.
  absl::Status Enter(DrainedCall* call);
  void Leave(DrainedCall* call);
  // Whether every call left within `timeout`.
  bool AwaitIdle(std::chrono::nanoseconds timeout);
  void AbortAll(const absl::Status& status);

 private:
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.empty(); }

  const size_t calls_max_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<DrainedCall*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace strata::rpc
