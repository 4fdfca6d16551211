// Preloaded into a server whose disk is to misbehave (LD_PRELOAD): transfers of pread and pwrite,
// as the I/O engine "threads" makes them, are delayed or fail as a control file says. The file,
// named by FAULTY_DISK_CONTROL, holds two 32-bit integers: milliseconds that every read is late,
// and the errno that every write fails with (0: none). It may be changed at any time.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

struct Control {
  volatile int32_t read_delay_ms;
  volatile int32_t write_errno;
};

const Control* OpenControl() {
  static const Control kQuiet = {0, 0};
  const char* path = std::getenv("FAULTY_DISK_CONTROL");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY);
  if (fd < 0) return &kQuiet;
  void* memory = mmap(nullptr, sizeof(Control), PROT_READ, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? &kQuiet : static_cast<const Control*>(memory);
}

const Control& TheControl() {
  static const Control* const control = OpenControl();
  return *control;
}

// The cold store's transfers are whole sectors; nobody else's are its business.
bool IsTransfer(size_t bytes, off_t offset) { return bytes % 4096 == 0 && offset % 4096 == 0; }

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  static const auto next = Next<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  const int32_t delay = TheControl().read_delay_ms;
  if (delay > 0 && IsTransfer(bytes, offset)) usleep(static_cast<useconds_t>(delay) * 1000);
  return next(fd, buffer, bytes, offset);
}

extern "C" ssize_t pwrite(int fd, const void* buffer, size_t bytes, off_t offset) {
  static const auto next = Next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  const int32_t failure = TheControl().write_errno;
  if (failure != 0 && IsTransfer(bytes, offset)) {
    errno = failure;
    return -1;
  }
  return next(fd, buffer, bytes, offset);
}
