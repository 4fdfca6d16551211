#include "server/rpc/errors.h"

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/message.h"
#include "google/rpc/error_details.pb.h"
#include "server/engine/request.h"

namespace strata::rpc {
namespace {

constexpr char kErrorDomain[] = "strata.v1";
// A running request frees its memory in about a second at the least.
constexpr std::chrono::milliseconds kBusyRetry{1000};

void AddRetry(std::chrono::milliseconds delay, absl::Status* status) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(delay.count() / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay.count() % 1000 * 1000000));
  AddDetail(retry, status);
}

google::rpc::ErrorInfo Info(absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kErrorDomain);
  return info;
}

// The quotas that a refusal beginning with `word` is about.
google::rpc::QuotaFailure Failure(absl::string_view word, const std::vector<Quota>& quotas) {
  const bool queue_only = word == kQueueFull || word == kQueueTimeout;
  google::rpc::QuotaFailure failure;
  for (const Quota& quota : quotas) {
    if (quota.subject == "queue" ? word == kKvCapacity : queue_only) continue;
    auto* violation = failure.add_violations();
    violation->set_subject(quota.subject);
    violation->set_description(quota.description);
  }
  return failure;
}

// "KV_CAPACITY: ..." or "kv_policy.min_format asks ...": what comes before the first space or
// colon, if that can be a reason or the path of a field.
std::string LeadingWord(absl::string_view message) {
  const absl::string_view word = message.substr(0, message.find_first_of(": "));
  for (const char c : word) {
    if (!absl::ascii_isalpha(c) && c != '_' && c != '.') return "";
  }
  return std::string(word);
}

std::string TypeUrl(const google::protobuf::Message& message) {
  return absl::StrCat(kDetailPrefix, message.GetDescriptor()->full_name());
}

}  // namespace

void AddDetail(const google::protobuf::Message& detail, absl::Status* status) {
  status->SetPayload(TypeUrl(detail), absl::Cord(detail.SerializeAsString()));
}

bool GetDetail(const absl::Status& status, google::protobuf::Message* detail) {
  const auto payload = status.GetPayload(TypeUrl(*detail));
  return payload.has_value() && detail->ParseFromString(std::string(*payload));
}

absl::Status FieldViolations::ToStatus() const {
  if (empty()) return absl::OkStatus();
  google::rpc::BadRequest details;
  std::vector<std::string> lines;
  for (const auto& [field, description] : told_) {
    auto* violation = details.add_field_violations();
    violation->set_field(field);
    violation->set_description(description);
    lines.push_back(absl::StrCat(field, ": ", description));
  }
  if (count_ > told_.size()) lines.push_back(absl::StrCat("and ", count_ - told_.size(), " more"));
  absl::Status status = absl::InvalidArgumentError(absl::StrJoin(lines, "; "));
  AddDetail(details, &status);
  return status;
}

absl::Status InvalidField(absl::string_view field, absl::string_view description) {
  FieldViolations violations;
  violations.Add(std::string(field), std::string(description));
  return violations.ToStatus();
}

absl::Status UnsupportedField(absl::string_view field, absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(field, what.empty() ? "" : " ", what, " is not supported by this server"));
}

absl::Status ContextLengthExceeded(absl::string_view field, int64_t prompt_tokens, int64_t limit) {
  const std::string count =
      prompt_tokens < 0 ? absl::StrCat("more than ", limit) : absl::StrCat(prompt_tokens);
  absl::Status status = InvalidField(
      field, absl::StrCat("the prompt has ", count, " tokens; with at least one to generate, ",
                          limit, " is the limit of the context"));
  google::rpc::ErrorInfo info = Info(kContextLengthExceeded);
  if (prompt_tokens >= 0) (*info.mutable_metadata())["prompt_tokens"] = absl::StrCat(prompt_tokens);
  (*info.mutable_metadata())["context_length"] = absl::StrCat(limit);
  AddDetail(info, &status);
  return status;
}

absl::Status UnavailableFor(absl::string_view why, std::chrono::milliseconds retry) {
  absl::Status status = absl::UnavailableError(why);
  AddRetry(retry, &status);
  return status;
}

absl::Status DescribeEngineError(const absl::Status& status, const std::vector<Quota>& quotas) {
  absl::Status described = status;
  const std::string word = LeadingWord(status.message());
  const bool is_reason = !word.empty() && absl::ascii_isupper(word[0]);
  if (is_reason) AddDetail(Info(word), &described);
  if (absl::IsInvalidArgument(status)) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(is_reason ? "input" : word);
    violation->set_description(std::string(status.message()));
    AddDetail(bad_request, &described);
  }
  if (absl::IsResourceExhausted(status)) AddDetail(Failure(word, quotas), &described);
  const bool busy = absl::IsResourceExhausted(status) && word != kKvCapacity;
  if (busy || absl::IsUnavailable(status)) AddRetry(kBusyRetry, &described);
  return described;
}

}  // namespace strata::rpc
