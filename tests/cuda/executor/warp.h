#pragma once

// CUDA's barriers, shuffles, votes and reductions, over executor/rendezvous.h.

#include <type_traits>

#include "tests/cuda/executor/rendezvous.h"

namespace executor {

template <class T>
struct ShufflePayload {
  T in, out;
  int source;  // the lane to read from
};

template <class T>
EXECUTOR_NO_TSAN inline void ShuffleLanes(void* const* lanes, unsigned mask) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1) || !lanes[lane]) continue;
    auto* mine = static_cast<ShufflePayload<T>*>(lanes[lane]);
    if (!(mask >> mine->source & 1) || !lanes[mine->source]) {
      Fail({"shuffle", 0}, "lane %u reads lane %d, which is not in the mask 0x%08x or has exited",
           lane, mine->source, mask);
    }
    const auto* other = static_cast<ShufflePayload<T>*>(lanes[mine->source]);
    __builtin_memcpy(static_cast<void*>(&mine->out), &other->in, sizeof(T));
  }
}

template <class T>
inline T Shuffle(unsigned mask, T value, int source, Location location) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  ShufflePayload<T> payload{value, value, source};
  WarpCollective(WarpOp::kShuffle, mask, &payload, &ShuffleLanes<T>, false, location);
  return payload.out;
}

enum class ReduceOp { kAdd, kMinUnsigned, kMaxUnsigned, kMinSigned, kMaxSigned, kAnd, kOr, kXor };
unsigned Reduce(unsigned mask, unsigned value, ReduceOp op, Location location);
unsigned Ballot(unsigned mask, bool predicate, Location location);

// First lane of the caller's segment of `width` lanes.
inline int SegmentStart(int width) { return static_cast<int>(LaneId()) & ~(width - 1); }

}  // namespace executor

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EXECUTOR_CALLER) {
  const int start = executor::SegmentStart(width);
  return executor::Shuffle(mask, value, start + (source & (width - 1)), EXECUTOR_HERE);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EXECUTOR_CALLER) {
  const int lane = static_cast<int>(executor::LaneId());
  const int source = lane - static_cast<int>(delta);
  return executor::Shuffle(mask, value, source < executor::SegmentStart(width) ? lane : source,
                           EXECUTOR_HERE);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EXECUTOR_CALLER) {
  const int lane = static_cast<int>(executor::LaneId());
  const int source = lane + static_cast<int>(delta);
  const int end = executor::SegmentStart(width) + width;
  return executor::Shuffle(mask, value, source >= end ? lane : source, EXECUTOR_HERE);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EXECUTOR_CALLER) {
  const int lane = static_cast<int>(executor::LaneId());
  const int source = lane ^ lane_mask;
  const int end = executor::SegmentStart(width) + width;
  return executor::Shuffle(mask, value, source >= end ? lane : source, EXECUTOR_HERE);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EXECUTOR_CALLER) {
  return executor::Ballot(mask, predicate != 0, EXECUTOR_HERE);
}
inline int __any_sync(unsigned mask, int predicate, EXECUTOR_CALLER) {
  return executor::Ballot(mask, predicate != 0, EXECUTOR_HERE) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EXECUTOR_CALLER) {
  return executor::Ballot(mask, predicate == 0, EXECUTOR_HERE) == 0;
}
inline unsigned __activemask() { return executor::LiveLanes(); }

inline unsigned __reduce_add_sync(unsigned mask, unsigned v, EXECUTOR_CALLER) {
  return executor::Reduce(mask, v, executor::ReduceOp::kAdd, EXECUTOR_HERE);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v, EXECUTOR_CALLER) {
  return executor::Reduce(mask, v, executor::ReduceOp::kMinUnsigned, EXECUTOR_HERE);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, EXECUTOR_CALLER) {
  return executor::Reduce(mask, v, executor::ReduceOp::kMaxUnsigned, EXECUTOR_HERE);
}
inline int __reduce_add_sync(unsigned mask, int v, EXECUTOR_CALLER) {
  return static_cast<int>(
      executor::Reduce(mask, static_cast<unsigned>(v), executor::ReduceOp::kAdd, EXECUTOR_HERE));
}
inline int __reduce_min_sync(unsigned mask, int v, EXECUTOR_CALLER) {
  return static_cast<int>(executor::Reduce(mask, static_cast<unsigned>(v),
                                           executor::ReduceOp::kMinSigned, EXECUTOR_HERE));
}
inline int __reduce_max_sync(unsigned mask, int v, EXECUTOR_CALLER) {
  return static_cast<int>(executor::Reduce(mask, static_cast<unsigned>(v),
                                           executor::ReduceOp::kMaxSigned, EXECUTOR_HERE));
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v, EXECUTOR_CALLER) {
  return executor::Reduce(mask, v, executor::ReduceOp::kAnd, EXECUTOR_HERE);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, EXECUTOR_CALLER) {
  return executor::Reduce(mask, v, executor::ReduceOp::kOr, EXECUTOR_HERE);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v, EXECUTOR_CALLER) {
  return executor::Reduce(mask, v, executor::ReduceOp::kXor, EXECUTOR_HERE);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, EXECUTOR_CALLER) {
  char payload = 0;
  executor::WarpCollective(executor::WarpOp::kSyncWarp, mask, &payload, nullptr, true,
                           EXECUTOR_HERE);
}
inline void __syncthreads(EXECUTOR_CALLER) {
  executor::BlockBarrier(executor::BarrierReduction::kNone, 0, EXECUTOR_HERE);
}
inline int __syncthreads_count(int predicate, EXECUTOR_CALLER) {
  return executor::BlockBarrier(executor::BarrierReduction::kCount, predicate, EXECUTOR_HERE);
}
inline int __syncthreads_and(int predicate, EXECUTOR_CALLER) {
  return executor::BlockBarrier(executor::BarrierReduction::kAnd, predicate, EXECUTOR_HERE);
}
inline int __syncthreads_or(int predicate, EXECUTOR_CALLER) {
  return executor::BlockBarrier(executor::BarrierReduction::kOr, predicate, EXECUTOR_HERE);
}
inline void __threadfence() { executor::MemoryFence(); }
inline void __threadfence_block() { executor::MemoryFence(); }
inline void __threadfence_system() { executor::MemoryFence(); }
inline void __nanosleep(unsigned) { executor::YieldThread(); }
