#include "tests/cuda/executor/warp.h"

namespace executor {
namespace {

struct ReducePayload {
  unsigned in, out;
  ReduceOp op;
};

unsigned Combine(ReduceOp op, unsigned a, unsigned b) {
  const int sa = static_cast<int>(a), sb = static_cast<int>(b);
  switch (op) {
    case ReduceOp::kAdd:
      return a + b;
    case ReduceOp::kMinUnsigned:
      return a < b ? a : b;
    case ReduceOp::kMaxUnsigned:
      return a > b ? a : b;
    case ReduceOp::kMinSigned:
      return sa < sb ? a : b;
    case ReduceOp::kMaxSigned:
      return sa > sb ? a : b;
    case ReduceOp::kAnd:
      return a & b;
    case ReduceOp::kOr:
      return a | b;
    case ReduceOp::kXor:
      return a ^ b;
  }
  return 0;
}

void ReduceLanes(void* const* lanes, unsigned) {
  bool first = true;
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (!lanes[lane]) continue;
    const auto* payload = static_cast<ReducePayload*>(lanes[lane]);
    result = first ? payload->in : Combine(payload->op, result, payload->in);
    first = false;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes[lane]) static_cast<ReducePayload*>(lanes[lane])->out = result;
  }
}

struct VotePayload {
  bool predicate;
  unsigned ballot;
};

void VoteLanes(void* const* lanes, unsigned) {
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes[lane] && static_cast<VotePayload*>(lanes[lane])->predicate) ballot |= 1u << lane;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes[lane]) static_cast<VotePayload*>(lanes[lane])->ballot = ballot;
  }
}

}  // namespace

unsigned Reduce(unsigned mask, unsigned value, ReduceOp op, Location location) {
  ReducePayload payload{value, 0, op};
  WarpCollective(WarpOp::kReduce, mask, &payload, &ReduceLanes, false, location);
  return payload.out;
}

unsigned Ballot(unsigned mask, bool predicate, Location location) {
  VotePayload payload{predicate, 0};
  WarpCollective(WarpOp::kVote, mask, &payload, &VoteLanes, false, location);
  return payload.ballot;
}

}  // namespace executor
