#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"
#include "server/rpc/serving_state.h"
#include "tests/testing/patience.h"

namespace strata {

// An engine that runs nothing: it keeps what was submitted, and the test plays the events. Any
// thread.
class FakeEngine final : public Engine {
 public:
  struct Submission {
    uint64_t ticket = 0;
    Request request;
    std::shared_ptr<RequestSink> sink;
  };

  FakeEngine() {
    options_.max_context = 100;
    tier_options_.geometry = {2, 2, 32};
    tier_options_.formats =
        TierFormats::Uniform(2, {KvKind::kI4, KvKind::kI4}, {KvKind::kI2, KvKind::kI2});
    tier_options_.hot_bytes = 1000;
    tier_options_.warm_bytes = 500;
    tier_options_.cold_bytes = 200;
  }

  // Answers like an engine: cancelled requests end at once. Off: the test ends them.
  void set_obey_cancel(bool obey) { obey_cancel_ = obey; }

  uint64_t Submit(Request request, std::shared_ptr<RequestSink> sink) override {
    absl::MutexLock lock(&mutex_);
    submissions_.push_back({++tickets_, std::move(request), std::move(sink)});
    return tickets_;
  }
  void Cancel(uint64_t ticket) override {
    std::shared_ptr<RequestSink> sink;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_.push_back(ticket);
      for (Submission& submission : submissions_) {
        if (submission.ticket == ticket && obey_cancel_) sink = std::move(submission.sink);
      }
    }
    if (sink != nullptr) sink->OnError(absl::CancelledError("cancelled"));
  }

  // Waits for the submission of that number, from 0 on. The sink is handed over.
  Submission Await(size_t number) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] {
      mutex_.AssertHeld();
      return submissions_.size() > number;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::FromChrono(kPatience))) return {};
    return submissions_[number];
  }
  bool AwaitCancel(uint64_t ticket) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] {
      mutex_.AssertHeld();
      return std::find(cancelled_.begin(), cancelled_.end(), ticket) != cancelled_.end();
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::FromChrono(kPatience));
  }
  size_t submitted() const {
    absl::MutexLock lock(&mutex_);
    return submissions_.size();
  }
  // Lets go of every sink.
  void Forget() {
    absl::MutexLock lock(&mutex_);
    submissions_.clear();
  }

  void set_snapshot(EngineSnapshot snapshot) {
    absl::MutexLock lock(&mutex_);
    snapshot_ = std::make_shared<const EngineSnapshot>(std::move(snapshot));
  }
  std::shared_ptr<const EngineSnapshot> Snapshot() const override {
    absl::MutexLock lock(&mutex_);
    return snapshot_;
  }
  const EngineOptions& options() const override { return options_; }
  const TierOptions& tier_options() const override { return tier_options_; }
  const PositionalPolicy& default_policy() const override { return policy_; }
  int64_t InFlight() const override { return static_cast<int64_t>(submitted()); }

 private:
  EngineOptions options_;
  TierOptions tier_options_;
  PositionalPolicy policy_ = {1, 4, 8};
  bool obey_cancel_ = true;
  mutable absl::Mutex mutex_;
  std::vector<Submission> submissions_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  uint64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const EngineSnapshot> snapshot_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const EngineSnapshot>();
};

// One token a byte, its value the id; 256 is BOS, "<s>".
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256;

  absl::StatusOr<std::vector<TokenSpan>> Encode(absl::string_view text,
                                                const EncodeOptions& options) const override {
    std::vector<TokenSpan> spans;
    if (options.add_special) spans.push_back({kBos, 0, 0});
    for (uint32_t i = 0; i < text.size(); ++i) {
      if (options.parse_special && text.substr(i, 3) == "<s>") {
        spans.push_back({kBos, i, i + 3});
        i += 2;
        continue;
      }
      spans.push_back({static_cast<uint8_t>(text[i]), i, i + 1});
    }
    return spans;
  }
  std::string TokenBytes(int32_t id, bool show_special) const override {
    if (id == kBos) return show_special ? "<s>" : "";
    return id >= 0 && id < kBos ? std::string(1, static_cast<char>(id)) : "";
  }
  std::string Decode(const std::vector<int32_t>& ids, bool show_special) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id, show_special);
    return text;
  }
  int32_t vocab_size() const override { return kBos + 1; }
  bool IsSpecial(int32_t id) const override { return id == kBos; }
  bool IsEog(int32_t id) const override { return id == 0; }
  const std::vector<int32_t>& eog_ids() const override { return eog_ids_; }
  int32_t bos_id() const override { return kBos; }
  bool adds_bos() const override { return true; }

 private:
  std::vector<int32_t> eog_ids_ = {0};
};

inline rpc::ServedModel FakeModel(const Tokenizer* tokenizer, Engine* engine) {
  rpc::ServedModel model;
  model.name = "fake";
  model.architecture = "llama";
  model.weight_format = "Q4_1";
  model.weight_bytes = 12;
  model.fingerprint = 0xabc;
  model.vocab_size = tokenizer->vocab_size();
  model.context_length = engine->options().max_context;
  model.longest_token = rpc::LongestToken(*tokenizer);
  model.tokenizer = tokenizer;
  model.engine = engine;
  return model;
}

}  // namespace strata
