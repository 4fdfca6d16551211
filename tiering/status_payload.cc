#include "tiering/status_payload.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr char kUrl[] = "strata/sequence";

}  // namespace

absl::Status WithSequence(absl::Status status, SequenceHandle sequence) {
  status.SetPayload(kUrl, absl::Cord(absl::StrCat(sequence)));
  return status;
}

SequenceHandle TieredCache::SequenceOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  SequenceHandle sequence = 0;
  if (payload.has_value() && absl::SimpleAtoi(std::string(*payload), &sequence)) return sequence;
  return 0;
}

}  // namespace strata
