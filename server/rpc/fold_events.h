#pragma once

#include "strata/v1/inference.pb.h"

namespace strata::rpc {

// Adds one event of a stream to the result that GenerateOnce would have returned.
void FoldEvent(const v1::GenerateEvent& event, v1::GenerateResult* result);

}  // namespace strata::rpc
