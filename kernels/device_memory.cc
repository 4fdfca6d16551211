#include "kernels/device_memory.h"

#include <cstring>
#include <utility>

#include "base/memory_limits.h"
#include "base/status_macros.h"

namespace strata {
namespace {

class HostDeviceMemory final : public DeviceMemory {
 public:
  absl::StatusOr<Buffer> AllocateDevice(size_t bytes) override { return Allocate(bytes); }
  absl::StatusOr<Buffer> AllocatePinned(size_t bytes) override { return Allocate(bytes); }
  absl::StatusOr<Available> AvailableDevice() const override {
    STRATA_ASSIGN_OR_RETURN(const AvailableBytes memory, AvailableMemory());
    return Available{memory.bytes, memory.bound_by};
  }
  bool host_accessible() const override { return true; }
  absl::Status Upload(const void* host, size_t bytes, void* device) override {
    std::memcpy(device, host, bytes);
    return absl::OkStatus();
  }
  absl::Status Download(const void* device, size_t bytes, void* host) override {
    std::memcpy(host, device, bytes);
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  static absl::StatusOr<Buffer> Allocate(size_t bytes) {
    STRATA_ASSIGN_OR_RETURN(AlignedBuffer memory, AlignedBuffer::Allocate(bytes));
    return Buffer(std::move(memory));
  }
};

}  // namespace

std::unique_ptr<DeviceMemory> MakeHostMemory() { return std::make_unique<HostDeviceMemory>(); }

DeviceMemory* HostMemory() {
  static auto* const memory = new HostDeviceMemory;
  return memory;
}

absl::StatusOr<DeviceFloats> DeviceFloats::Upload(absl::Span<const float> values,
                                                  DeviceMemory* memory) {
  DeviceFloats floats;
  if (values.empty()) return floats;
  const size_t bytes = values.size() * sizeof(float);
  STRATA_ASSIGN_OR_RETURN(floats.buffer_, memory->AllocateDevice(bytes));
  STRATA_RETURN_IF_ERROR(memory->Upload(values.data(), bytes, floats.buffer_.data()));
  return floats;
}

}  // namespace strata
