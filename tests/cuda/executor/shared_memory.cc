#include "tests/cuda/executor/shared_memory.h"

#include <cstdint>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "tests/cuda/executor/sanitizers.h"
#include "tests/cuda/executor/scheduler.h"
#include "tests/cuda/executor/shared_memory_internal.h"

namespace executor {
namespace {

constexpr size_t kSharedGuardBytes =
    256;  // on each side, NaN: an overrun that AddressSanitizer is not there to see

struct Array {
  char* allocation = nullptr;  // guard, array, guard
  char* data = nullptr;
  size_t bytes = 0;
};

std::unordered_map<const void*, Array> static_arrays;
Array dynamic_array;
std::vector<char*> finished;

// Aligned to exactly `align` and no more, as the GPU may place it: an array of halves is not fit
// for 16-byte access unless declared so.
Array Allocate(size_t bytes, size_t align) {
  const size_t offset = kSharedGuardBytes + (align < 64 ? align : 0);
  void* allocation = nullptr;
  if (posix_memalign(&allocation, 128, offset + bytes + kSharedGuardBytes) != 0) std::abort();
  Array array{static_cast<char*>(allocation), static_cast<char*>(allocation) + offset, bytes};
  FillWithNan(allocation, offset + bytes + kSharedGuardBytes);
  AsanPoison(allocation, offset);
  AsanPoison(array.data + bytes, kSharedGuardBytes);
  return array;
}

void CheckSharedZone(const char* zone, size_t bytes, const char* where) {
  for (size_t i = 0; i < bytes; ++i) {
    if (zone[i] != static_cast<char>(0xff)) {
      Fail({"shared memory", 0}, "a write outside an array of shared memory, %s it", where);
    }
  }
}

void Retire(const Array& array) {
  AsanUnpoison(array.allocation, static_cast<size_t>(array.data - array.allocation));
  AsanUnpoison(array.data + array.bytes, kSharedGuardBytes);
  CheckSharedZone(array.data - kSharedGuardBytes, kSharedGuardBytes, "before");
  CheckSharedZone(array.data + array.bytes, kSharedGuardBytes, "behind");
  finished.push_back(array.allocation);
}

}  // namespace

void FillWithNan(void* p, size_t bytes) {
  auto* out = static_cast<volatile char*>(p);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(0xff);
}

void* DynamicShared() { return dynamic_array.data; }
size_t DynamicSharedBytes() { return dynamic_array.bytes; }

void* StaticShared(const void* key, size_t bytes, size_t align) {
  const AsHost as_host(&Scheduler::Get().current()->fiber);
  Array& array = static_arrays[key];
  if (array.data == nullptr) array = Allocate(bytes, align);
  return array.data;
}

void BeginBlockMemory(size_t dynamic_bytes) {
  dynamic_array = dynamic_bytes > 0 ? Allocate(dynamic_bytes, 128) : Array{};
}

void EndBlockMemory() {
  if (dynamic_array.data != nullptr) Retire(dynamic_array);
  for (const auto& [key, array] : static_arrays) Retire(array);
  dynamic_array = {};
  static_arrays.clear();
#ifndef EXECUTOR_TSAN
  EndGridMemory();
#endif
}

void EndGridMemory() {
  for (char* allocation : finished) std::free(allocation);
  finished.clear();
}

}  // namespace executor
