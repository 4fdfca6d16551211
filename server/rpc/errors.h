#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace strata::rpc {

// Errors of the RPC layer are absl::Status values whose payloads are google.rpc messages: the
// payload's URL is the type URL, its bytes the message. ToGrpcStatus puts them into the trailer.

inline constexpr char kDetailPrefix[] = "type.googleapis.com/";

// Replaces any detail of the same type.
void AddDetail(const google::protobuf::Message& detail, absl::Status* status);
// Whether `status` has a detail of the type of `detail`; fills it.
bool GetDetail(const absl::Status& status, google::protobuf::Message* detail);

// Collects what is wrong with a request, so that a client is told all of it at once: the first
// kToldMax, and how many more there are. A request may have millions of wrong elements, and what
// is told travels in a trailer, of which clients take 8 KiB.
class FieldViolations {
 public:
  static constexpr size_t kToldMax = 12;

  void Add(std::string field, std::string description) {
    ++count_;
    if (told_.size() < kToldMax) told_.emplace_back(std::move(field), std::move(description));
  }
  bool empty() const { return count_ == 0; }
  // InvalidArgument with BadRequest, or OK when there is none.
  absl::Status ToStatus() const;

 private:
  size_t count_ = 0;
  std::vector<std::pair<std::string, std::string>> told_;
};

absl::Status InvalidField(absl::string_view field, absl::string_view description);
// UNIMPLEMENTED naming the field; `what` says which values, or "" for all.
absl::Status UnsupportedField(absl::string_view field, absl::string_view what);
// INVALID_ARGUMENT with ErrorInfo CONTEXT_LENGTH_EXCEEDED. `prompt_tokens` < 0: only known to be
// too many.
absl::Status ContextLengthExceeded(absl::string_view field, int64_t prompt_tokens, int64_t limit);
// UNAVAILABLE with RetryInfo.
absl::Status UnavailableFor(absl::string_view why, std::chrono::milliseconds retry);

// What a request can run out of, and how much is left: "queue", "tier:hot", ...
struct Quota {
  std::string subject;
  std::string description;
};

// An error of the engine (server/engine/request.h) as a client should see it. The word a refusal
// begins with becomes the reason of an ErrorInfo. RESOURCE_EXHAUSTED gets a QuotaFailure of the
// quotas it is about, and a RetryInfo unless it can never fit. INVALID_ARGUMENT gets a BadRequest
// with the field its message begins with.
absl::Status DescribeEngineError(const absl::Status& status, const std::vector<Quota>& quotas);

}  // namespace strata::rpc
