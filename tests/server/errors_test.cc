#include "server/rpc/errors.h"

#include <map>

#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "server/engine/request.h"
#include "server/rpc/status_to_grpc.h"
#include "server/rpc/utf8.h"

namespace strata::rpc {
namespace {

TEST(StatusToGrpcTest, EveryCodeHasItsOwn) {
  const std::map<absl::StatusCode, grpc::StatusCode> expected = {
      {absl::StatusCode::kOk, grpc::OK},
      {absl::StatusCode::kCancelled, grpc::CANCELLED},
      {absl::StatusCode::kUnknown, grpc::UNKNOWN},
      {absl::StatusCode::kInvalidArgument, grpc::INVALID_ARGUMENT},
      {absl::StatusCode::kDeadlineExceeded, grpc::DEADLINE_EXCEEDED},
      {absl::StatusCode::kNotFound, grpc::NOT_FOUND},
      {absl::StatusCode::kAlreadyExists, grpc::ALREADY_EXISTS},
      {absl::StatusCode::kPermissionDenied, grpc::PERMISSION_DENIED},
      {absl::StatusCode::kResourceExhausted, grpc::RESOURCE_EXHAUSTED},
      {absl::StatusCode::kFailedPrecondition, grpc::FAILED_PRECONDITION},
      {absl::StatusCode::kAborted, grpc::ABORTED},
      {absl::StatusCode::kOutOfRange, grpc::OUT_OF_RANGE},
      {absl::StatusCode::kUnimplemented, grpc::UNIMPLEMENTED},
      {absl::StatusCode::kInternal, grpc::INTERNAL},
      {absl::StatusCode::kUnavailable, grpc::UNAVAILABLE},
      {absl::StatusCode::kDataLoss, grpc::DATA_LOSS},
      {absl::StatusCode::kUnauthenticated, grpc::UNAUTHENTICATED},
  };
  ASSERT_EQ(expected.size(), 17u);
  for (const auto& [code, grpc_code] : expected) EXPECT_EQ(ToGrpcCode(code), grpc_code);
  EXPECT_EQ(ToGrpcCode(static_cast<absl::StatusCode>(99)), grpc::UNKNOWN);
}

TEST(StatusToGrpcTest, DetailsTravelInTheTrailer) {
  absl::Status status = InvalidField("stop.max_tokens", "0 is not at least 1");
  status.SetPayload("internal/url", absl::Cord("not for clients"));
  const grpc::Status converted = ToGrpcStatus(status);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(converted.error_details()));
  EXPECT_EQ(details.code(), 3);
  EXPECT_EQ(details.message(), converted.error_message());
  ASSERT_EQ(details.details_size(), 1);
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(details.details(0).UnpackTo(&bad_request));
  ASSERT_EQ(bad_request.field_violations_size(), 1);
  EXPECT_EQ(bad_request.field_violations(0).field(), "stop.max_tokens");
}

TEST(FieldViolationsTest, TellsTheFirstAndCountsTheRest) {
  FieldViolations violations;
  EXPECT_TRUE(violations.ToStatus().ok());
  for (int i = 0; i < 1000; ++i) violations.Add("f", "bad");
  const absl::Status status = violations.ToStatus();
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(GetDetail(status, &bad_request));
  EXPECT_EQ(static_cast<size_t>(bad_request.field_violations_size()), FieldViolations::kToldMax);
  EXPECT_THAT(std::string(status.message()), testing::EndsWith("; f: bad; and 988 more"));
}

TEST(StatusToGrpcTest, NothingTravelsWithoutDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpcStatus(absl::InternalError("x")).error_details(), "");
}

const std::vector<Quota> kQuotas = {{"queue", "1 of 2"}, {"tier:hot", "3 of 4"}};

std::vector<std::string> Subjects(const absl::Status& status) {
  google::rpc::QuotaFailure failure;
  std::vector<std::string> subjects;
  if (!GetDetail(status, &failure)) return subjects;
  for (const auto& violation : failure.violations()) subjects.push_back(violation.subject());
  return subjects;
}
std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return GetDetail(status, &info) ? info.reason() : "";
}
bool HasRetry(const absl::Status& status) {
  google::rpc::RetryInfo retry;
  return GetDetail(status, &retry) && retry.retry_delay().seconds() > 0;
}

TEST(DescribeEngineErrorTest, AFullQueueMayBeTriedAgain) {
  const absl::Status status =
      DescribeEngineError(absl::ResourceExhaustedError("QUEUE_FULL: 2 are waiting"), kQuotas);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(ReasonOf(status), kQueueFull);
  EXPECT_THAT(Subjects(status), testing::ElementsAre("queue"));
  EXPECT_TRUE(HasRetry(status));
}

TEST(DescribeEngineErrorTest, WhatCanNeverFitMayNot) {
  const absl::Status status =
      DescribeEngineError(absl::ResourceExhaustedError("KV_CAPACITY: too long"), kQuotas);
  EXPECT_EQ(ReasonOf(status), kKvCapacity);
  EXPECT_THAT(Subjects(status), testing::ElementsAre("tier:hot"));
  EXPECT_FALSE(HasRetry(status));
}

TEST(DescribeEngineErrorTest, AnInvalidFieldIsNamed) {
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(
      GetDetail(DescribeEngineError(absl::InvalidArgumentError("kv_policy.min_format bad"), {}),
                &bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "kv_policy.min_format");
}

TEST(DescribeEngineErrorTest, OthersStayAsTheyAre) {
  EXPECT_EQ(DescribeEngineError(absl::CancelledError("gone"), kQuotas),
            absl::CancelledError("gone"));
  EXPECT_EQ(DescribeEngineError(absl::InternalError("2 x"), kQuotas), absl::InternalError("2 x"));
}

TEST(Utf8Test, ReplacesWhatIsNoCharacter) {
  EXPECT_EQ(ToValidUtf8("a\xC3\xB6\xE4\xBD\xA0\xF0\x9F\x98\x80"),
            "a\xC3\xB6\xE4\xBD\xA0\xF0\x9F\x98\x80");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(ToValidUtf8("a\xC3"), "a" + bad);                         // cut off
  EXPECT_EQ(ToValidUtf8("\xC0\x80"), bad + bad);                      // overlong
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), bad + bad + bad);            // surrogate
  EXPECT_EQ(ToValidUtf8("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // above U+10FFFF
  EXPECT_EQ(ToValidUtf8("\x80x"), bad + "x");                         // a continuation alone
}

}  // namespace
}  // namespace strata::rpc
