#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

absl::StatusOr<AlignedBuffer> AlignedBuffer::Allocate(size_t bytes) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  // The kernel only backs 2 MiB-aligned spans with huge pages, and mmap aligns to 4 KiB, so the
  // mapping is rounded up to whole huge pages once it is large enough to profit.
  const size_t unit = bytes >= kHugePage ? kHugePage : size_t{4096};
  const size_t mapped = (bytes + unit - 1) / unit * unit;
  if (mapped < bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("buffer of ", bytes, " bytes is too large"));
  }
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes: ", std::strerror(errno)));
  }
  // Advice only: without huge pages everything still works.
  if (bytes >= kHugePage) madvise(p, mapped, MADV_HUGEPAGE);
  buffer.data_ = static_cast<std::byte*>(p);
  buffer.size_ = bytes;
  buffer.mapped_ = mapped;
  return buffer;
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapped_ = std::exchange(other.mapped_, 0);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() { Free(); }

void AlignedBuffer::Free() {
  if (data_ != nullptr) munmap(data_, mapped_);
  data_ = nullptr;
  size_ = mapped_ = 0;
}

}  // namespace strata
