#include "tests/cuda/executor/async_copy.h"

#include "tests/cuda/executor/sanitizers.h"
#include "tests/cuda/executor/scheduler.h"
#include "tests/cuda/executor/shared_memory_internal.h"

namespace executor {

void CpAsync(void* destination, const void* source, int bytes, int source_bytes,
             Location location) {
  Thread* me = Scheduler::Get().current();
  if (bytes != 4 && bytes != 8 && bytes != 16) Fail(location, "cp.async of %d bytes", bytes);
  if (source_bytes < 0 || source_bytes > bytes) {
    Fail(location, "cp.async of %d bytes from %d", bytes, source_bytes);
  }
  const auto addresses =
      reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source);
  if (addresses & static_cast<unsigned>(bytes - 1)) {
    Fail(location, "cp.async misaligned: destination %p, source %p, %d bytes", destination, source,
         bytes);
  }
  if (AsanPoisoned(destination, static_cast<size_t>(bytes))) {
    Fail(location, "cp.async: the destination %p is outside its array", destination);
  }
  if (AsanPoisoned(source, static_cast<size_t>(source_bytes))) {
    Fail(location, "cp.async: the source %p is outside its allocation", source);
  }
  TsanWrite(destination, static_cast<size_t>(bytes));
  TsanRead(source, static_cast<size_t>(source_bytes));
  FillWithNan(destination, static_cast<size_t>(bytes));
  const AsHost as_host(&me->fiber);
  me->copies.push_back({destination, source, bytes, source_bytes, me->copy_group});
  me->location = location;
}

void CpAsyncCommit() { ++Scheduler::Get().current()->copy_group; }

void CpAsyncWait(int groups_left) {
  Thread* me = Scheduler::Get().current();
  size_t kept = 0;
  for (const PendingCopy& copy : me->copies) {
    if (copy.group >= me->copy_group - groups_left) {
      me->copies[kept++] = copy;
      continue;
    }
    TsanRead(copy.source, static_cast<size_t>(copy.source_bytes));
    TsanWrite(copy.destination, static_cast<size_t>(copy.bytes));
    const auto* from = static_cast<const volatile char*>(copy.source);
    auto* to = static_cast<volatile char*>(copy.destination);
    for (int i = 0; i < copy.bytes; ++i) to[i] = i < copy.source_bytes ? from[i] : char{0};
  }
  me->copies.resize(kept);
}

}  // namespace executor
