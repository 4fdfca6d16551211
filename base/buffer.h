#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "base/aligned_buffer.h"

namespace strata {

// Bytes of some device or of the host, given back when the owner goes. Says nothing about who may
// touch them: that is the promise of whoever allocated them. Move-only; any thread may free it.
class Buffer {
 public:
  using Release = std::function<void(std::byte*)>;

  Buffer() = default;
  Buffer(std::byte* data, size_t size, Release release)
      : size_(size), data_(data, std::move(release)) {}
  // Host memory.
  explicit Buffer(AlignedBuffer memory) {
    auto owned = std::make_shared<AlignedBuffer>(std::move(memory));
    size_ = owned->size();
    data_ = {owned->data(), [owned](std::byte*) mutable { owned.reset(); }};
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return data_ == nullptr ? 0 : size_; }

 private:
  size_t size_ = 0;
  std::unique_ptr<std::byte, Release> data_;
};

}  // namespace strata
