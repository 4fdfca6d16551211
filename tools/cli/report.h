#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "strata/v1/inference.pb.h"

namespace strata::cli {

// What people read; each ends with a newline.
std::string SummaryReport(const v1::GenerateResult& result);
std::string StatsReport(const v1::CacheStats& stats);
std::string TokensReport(const v1::TokenizeResponse& response);
std::string InfoReport(const v1::ServerInfo& server, const v1::ListModelsResponse& models);
// Code, message and details.
std::string ErrorReport(const absl::Status& status);

// What programs read: the standard JSON form, with the proto's own field names, on one line.
std::string ToJson(const google::protobuf::Message& message);

}  // namespace strata::cli
