#include "tests/cuda/device/rig.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "tests/engine/test_tiers.h"
#include "tests/testing/tiny_model.h"
#include "tiering/tiered_cache.h"

namespace strata {
namespace {

constexpr int32_t kSequences = 4;
constexpr int32_t kContext = 512;

template <typename T>
T Checked(absl::StatusOr<T> value) {
  if (!value.ok()) ADD_FAILURE() << value.status();
  STRATA_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

absl::Status WatchedModel::Forward(const ForwardBatch& batch, KvStep* kv, float* logits) {
  const absl::Status status = model_->Forward(batch, kv, logits);
  if (!status.ok()) return status;
  absl::Span<const DeviceDraws::Request> drawn;
  if (batch.draws != nullptr) drawn = batch.draws->requests();
  const auto vocabulary = static_cast<size_t>(config().vocab_size);
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    if (!drawn.empty() && drawn.front().logits_index == static_cast<int32_t>(i)) {
      drawn.remove_prefix(1);
    } else {
      Watch({logits + i * vocabulary, vocabulary});
    }
  }
  return status;
}

void WatchedModel::Watch(absl::Span<const float> logits) {
  logits_.insert(logits_.end(), logits.begin(), logits.end());
  float best = -std::numeric_limits<float>::infinity();
  float second = best;
  for (const float logit : logits) {
    second = std::max(second, std::min(best, logit));
    best = std::max(best, logit);
  }
  least_gap_ = std::min(least_gap_, best - second);
}

Rig::Rig(Backend backend, const std::string& model_path, const std::string& directory,
         const PositionalPolicy& policy)
    : backend_(std::move(backend)) {
  ModelOptions options;
  options.path = model_path;
  options.max_rows = 96;
  options.calibrate_basis = false;
  model_ = Checked(Model::Load(options, &backend_));
  watched_ = std::make_unique<WatchedModel>(model_.get());
  const TierOptions tiers =
      RoomyTiers(*model_, {KvKind::kI4, KvKind::kI4}, {KvKind::kI2, KvKind::kI2}, kSequences,
                 kContext, directory + "/cold");
  auto cache = Checked(TieredCache::Create(tiers, backend_.codec.get(), backend_.memory.get()));
  EngineOptions engine;
  engine.max_sequences = kSequences;
  engine.max_batch_tokens = options.max_rows;
  engine.default_policy = policy;
  engine_ = Checked(Engine::Create(engine, watched_.get(), std::move(cache), Clock::Real()));
}

Request Rig::Make(int32_t prompt, int32_t max_tokens, uint32_t salt) {
  Request request;
  std::mt19937 random(salt);
  const auto vocabulary = static_cast<uint32_t>(TinyVocabulary().size());
  for (int32_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>(3 + random() % (vocabulary - 3)));
  }
  request.stop.max_tokens = max_tokens;
  request.stop.ignore_eos = true;
  return request;
}

std::shared_ptr<RecordingSink> Rig::Submit(Request request, uint64_t* ticket) {
  auto sink = std::make_shared<RecordingSink>();
  const uint64_t submitted = engine_->Submit(std::move(request), sink);
  if (ticket != nullptr) *ticket = submitted;
  return sink;
}

Rig::Result Rig::Run(Request request) {
  const auto sink = Submit(std::move(request));
  sink->AwaitEnd();
  Result result;
  result.tokens = sink->tokens;
  for (const SampledToken& token : sink->sampled) result.logprobs.push_back(token.logprob);
  result.error = sink->error;
  result.text = sink->text;
  if (sink->finished.has_value()) {
    result.usage = sink->finished->usage;
    result.reason = sink->finished->reason;
  }
  return result;
}

void Rig::AwaitBaseline() {
  while (true) {
    const CacheSnapshot cache = engine_->Snapshot()->cache;
    uint64_t held = 0;
    for (const TierSnapshot& tier : cache.tiers) held += tier.used_bytes + tier.reserved_bytes;
    if (held == 0 && engine_->InFlight() == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace strata
