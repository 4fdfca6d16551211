#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/request.h"
#include "server/rpc/serving_state.h"
#include "strata/v1/inference.pb.h"

namespace strata::rpc {

// What requests get that leave it open.
struct RequestDefaults {
  int32_t max_tokens = 256;
  float temperature = 0;  // greedy
};

// What of a generation the client wants to see.
struct OutputChoices {
  bool logprobs = false;  // of the chosen tokens
  bool return_token_ids = false;
  bool cache_stats = true;
  bool progress = false;
};

// A request that was checked field by field. The prompt is either in `request` already, or still
// text to tokenize.
struct ParsedRequest {
  Request request;
  OutputChoices output;
  std::optional<std::string> text;
};

// UNIMPLEMENTED for what is not served; INVALID_ARGUMENT with every field violation.
absl::StatusOr<ParsedRequest> ReadRequest(const v1::GenerateRequest& message,
                                          const RequestDefaults& defaults, const ServedModel& model,
                                          Clock::TimePoint now);

// The prompt of a text request. CONTEXT_LENGTH_EXCEEDED where it leaves no room to generate.
absl::StatusOr<std::vector<int32_t>> TokenizePrompt(const std::string& text,
                                                    const ServedModel& model);
absl::Status CheckPromptLength(absl::string_view field, int64_t tokens, const ServedModel& model);
// A text no context of this model can hold, before any work is spent on it.
absl::Status CheckTextLength(absl::string_view field, size_t bytes, const ServedModel& model);

}  // namespace strata::rpc
