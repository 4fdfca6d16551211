#include "tests/cuda/executor/rendezvous.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/cuda/executor/sanitizers.h"
#include "tests/cuda/executor/scheduler.h"

namespace executor {
namespace {

bool SamePlace(Location a, Location b) { return a.line == b.line && a.file == b.file; }

}  // namespace

const char* NameOf(WarpOp op) {
  static constexpr const char* kNames[] = {"shuffle",  "vote", "reduce",
                                           "syncwarp", "mma",  "ldmatrix"};
  return kNames[static_cast<int>(op)];
}

void Fail(Location location, const char* format, ...) {
  std::fprintf(stderr, "executor: ERROR %s:%d: ", location.file, location.line);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (const Thread* thread = Scheduler::Get().current()) {
    std::fprintf(stderr, " [thread (%u,%u,%u) block (%u,%u,%u)]", thread->index.x, thread->index.y,
                 thread->index.z, blockIdx.x, blockIdx.y, blockIdx.z);
  }
  std::fputc('\n', stderr);
  std::abort();
}

int BlockBarrier(BarrierReduction reduction, int predicate, Location location) {
  return Scheduler::Get().Barrier(reduction, predicate, location);
}
void WarpCollective(WarpOp op, unsigned mask, void* payload, WarpFunction function,
                    bool orders_memory, Location location) {
  Scheduler::Get().Collective(op, mask, payload, function, orders_memory, location);
}
void MemoryFence() { Scheduler::Get().Fence(); }
void YieldThread() { Scheduler::Get().Yield(); }
unsigned LaneId() { return Scheduler::Get().current()->lane; }
unsigned LiveLanes() { return Scheduler::Get().LiveLanes(); }

// Objects differ by block and by generation, or a thread two barriers ahead would order one behind.
void* Scheduler::BarrierObject() {
  return &meeting_points_[(block_number_ * 128 + barrier_generation_ % 2) % meeting_points_.size()];
}
void* Scheduler::WarpObject(unsigned warp) {
  return &meeting_points_[(block_number_ * 128 + 8 + warp) % meeting_points_.size()];
}

void Scheduler::Fence() {
  TsanRelease(&fence_);
  TsanAcquire(&fence_);
}

void Scheduler::Yield() {
  Thread* me = current_;
  PushReady(me);
  Suspend(me);
}

int Scheduler::Barrier(BarrierReduction reduction, int predicate, Location location) {
  Thread* me = current_;
  if (alive_ != block_threads_) {
    Fail(location, "a block barrier after %u threads of the block have exited",
         block_threads_ - alive_);
  }
  if (in_barrier_ > 0 &&
      (!SamePlace(barrier_location_, location) || barrier_reduction_ != reduction)) {
    Fail(location, "divergent block barrier: other threads wait at %s:%d", barrier_location_.file,
         barrier_location_.line);
  }
  barrier_reduction_ = reduction;
  barrier_location_ = location;
  me->predicate = predicate;
  me->location = location;
  void* object = BarrierObject();
  TsanRelease(object);
  me->state = Thread::State::kInBarrier;
  if (++in_barrier_ == alive_) ReleaseBarrier();
  Suspend(me);
  TsanAcquire(object);
  return me->reduced;
}

void Scheduler::ReleaseBarrier() {
  unsigned count = 0;
  for (unsigned i = 0; i < block_threads_; ++i) count += threads_[i]->predicate != 0;
  int reduced = 0;
  if (barrier_reduction_ == BarrierReduction::kCount) reduced = static_cast<int>(count);
  if (barrier_reduction_ == BarrierReduction::kAnd) reduced = count == block_threads_;
  if (barrier_reduction_ == BarrierReduction::kOr) reduced = count != 0;
  for (unsigned i = 0; i < block_threads_; ++i) {
    threads_[i]->reduced = reduced;
    PushReady(threads_[i].get());
  }
  in_barrier_ = 0;
  ++barrier_generation_;
  ++stats_.barriers;
}

// Against one waiting peer only: each arrival compares, so all have been compared when the last is
// there.
void Scheduler::CheckPeers(const Thread& me, const Warp& warp) const {
  const unsigned peers = warp.waiting & me.mask;
  if (peers == 0) return;
  const Thread& peer = *LaneOf(me.warp, static_cast<unsigned>(__builtin_ctz(peers)));
  const bool waits_for_me = peer.mask >> me.lane & 1;
  if (waits_for_me &&
      (peer.op != me.op || peer.mask != me.mask || !SamePlace(peer.location, me.location))) {
    Fail(me.location, "%s(mask 0x%08x), but lane %u waits in %s(mask 0x%08x) at %s:%d",
         NameOf(me.op), me.mask, peer.lane, NameOf(peer.op), peer.mask, peer.location.file,
         peer.location.line);
  }
}

void Scheduler::Collective(WarpOp op, unsigned mask, void* payload, WarpFunction function,
                           bool orders_memory, Location location) {
  Thread* me = current_;
  Warp& warp = warps_[me->warp];
  me->op = op;
  me->mask = mask;
  me->payload = payload;
  me->location = location;
  if (!(mask >> me->lane & 1)) {
    Fail(location, "%s: the calling lane %u is not in its own mask 0x%08x", NameOf(op), me->lane,
         mask);
  }
  const unsigned expected = mask & warp.live;
  if ((op == WarpOp::kMma || op == WarpOp::kLdmatrix) && expected != mask) {
    Fail(location, "%s: lanes 0x%08x of the mask do not exist or have exited", NameOf(op),
         mask & ~expected);
  }
  CheckPeers(*me, warp);
  if (orders_memory) TsanRelease(WarpObject(me->warp));
  me->state = Thread::State::kInWarpOp;
  warp.waiting |= 1u << me->lane;
  if ((warp.waiting & expected) != expected) {
    Suspend(me);
  } else {
    ++stats_.warp_collectives;
    void* lanes[32];
    for (unsigned lane = 0; lane < 32; ++lane) {
      lanes[lane] = expected >> lane & 1 ? LaneOf(me->warp, lane)->payload : nullptr;
    }
    if (function != nullptr) function(lanes, mask);
    warp.waiting &= ~expected;
    me->state = Thread::State::kReady;
    // Under a random schedule the last to arrive does not always run on.
    const bool step_back = policy_ == SchedulePolicy::kRandom && (Random() & 1);
    for (unsigned rest = expected & ~(1u << me->lane); rest != 0; rest &= rest - 1) {
      PushReady(LaneOf(me->warp, static_cast<unsigned>(__builtin_ctz(rest))));
    }
    if (step_back) Yield();
  }
  if (orders_memory) TsanAcquire(WarpObject(me->warp));
}

void Scheduler::ReportDeadlock() const {
  std::map<std::string, unsigned> where;
  for (unsigned i = 0; i < block_threads_; ++i) {
    const Thread& thread = *threads_[i];
    const char* what = thread.state == Thread::State::kDone        ? "exited"
                       : thread.state == Thread::State::kInBarrier ? "in a block barrier"
                                                                   : NameOf(thread.op);
    ++where[std::string(what) + " at " + thread.location.file + ":" +
            std::to_string(thread.location.line)];
  }
  std::string report;
  for (const auto& [place, threads] : where) {
    report += "; " + std::to_string(threads) + " threads " + place;
  }
  Fail({"scheduler", 0}, "DEADLOCK in block (%u,%u,%u): no thread can run%s", blockIdx.x,
       blockIdx.y, blockIdx.z, report.c_str());
}

}  // namespace executor
