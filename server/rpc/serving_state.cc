#include "server/rpc/serving_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/rpc/errors.h"
#include "server/rpc/utf8.h"

namespace strata::rpc {
namespace {

constexpr std::chrono::milliseconds kLoadingRetry{2000};
// Long enough for a balancer to have noticed the health change.
constexpr std::chrono::milliseconds kDrainingRetry{5000};
constexpr size_t kNameToldMax = 128;  // bytes of a client's name for a model that are sent back

absl::Status Draining() { return UnavailableFor("the server is shutting down", kDrainingRetry); }

}  // namespace

size_t LongestToken(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id, /*show_special=*/true).size());
  }
  return longest;
}

void ServingState::Publish(ServedModel model) {
  absl::MutexLock lock(&mutex_);
  STRATA_CHECK(model_ == nullptr);
  model_ = std::make_shared<const ServedModel>(std::move(model));
}

void ServingState::BeginDrain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool ServingState::ready() const {
  absl::ReaderMutexLock lock(&mutex_);
  return model_ != nullptr && !draining_;
}

bool ServingState::draining() const {
  absl::ReaderMutexLock lock(&mutex_);
  return draining_;
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ServingState::Model() const {
  absl::ReaderMutexLock lock(&mutex_);
  if (model_ == nullptr) return UnavailableFor("the model is still loading", kLoadingRetry);
  return model_;
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ServingState::Find(
    const std::string& name) const {
  if (draining()) return Draining();
  STRATA_ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model, Model());
  if (!name.empty() && name != model->name) {
    return absl::NotFoundError(
        absl::StrCat("model '", ToValidUtf8(absl::string_view(name).substr(0, kNameToldMax)),
                     name.size() > kNameToldMax ? "..." : "", "' is not loaded; this server has '",
                     model->name, "'"));
  }
  return model;
}

absl::Status ServingState::Enter(DrainedCall* call) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  if (calls_.size() >= calls_max_) {
    const std::string limit = absl::StrCat(calls_max_, " calls are open");
    return DescribeEngineError(absl::ResourceExhaustedError(limit), {{"calls", limit}});
  }
  calls_.insert(call);
  return absl::OkStatus();
}

void ServingState::Leave(DrainedCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

bool ServingState::AwaitIdle(std::chrono::nanoseconds timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &ServingState::Idle),
                                 absl::FromChrono(timeout));
}

void ServingState::AbortAll(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  for (DrainedCall* call : calls_) call->Abort(status);
}

}  // namespace strata::rpc
