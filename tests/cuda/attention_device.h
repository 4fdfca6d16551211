#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_plan.h"
#include "tests/cuda/device_buffer.h"

namespace strata {

// Where a test's pages lie.
enum class PagePlace { kDevice, kMapped };

// The launches behind the interface of every backend, for tests: copies the runs' pages of host
// memory to where the device reads them (each an allocation of its own, so that a sanitizer sees a
// read past its end), plans, launches, and waits.
class LaunchedAttention final : public AttentionBackend {
 public:
  explicit LaunchedAttention(PagePlace place = PagePlace::kDevice) : place_(place) {}

  void Attend(const AttentionShape& shape, const float* q,
              absl::Span<const AttentionSequence> sequences, PartialStates* states) override;

  // States beyond what every plan needs.
  void set_spare_states(int64_t spare) { spare_states_ = spare; }
  // Queries of a prefill tile at most, as on a device with less shared memory; 0: no prefill.
  void set_prefill_queries_max(int32_t queries) { prefill_queries_max_ = queries; }
  // How many the plan is told of; 0: what the device has. With one, prefill tiles are the widest.
  void set_multiprocessors(int32_t count) { multiprocessors_ = count; }
  // What the last call was made of.
  const cuda::AttentionLists& lists() const { return lists_; }
  // The last call's o / l, by the merge that finishes.
  const std::vector<float>& finished() const { return finished_; }
  // Of all objects.
  static int64_t calls() { return calls_; }

 private:
  const PagePlace place_;
  int64_t spare_states_ = 1 << 20;
  int32_t prefill_queries_max_ = 1 << 20;
  int32_t multiprocessors_ = 0;
  static inline int64_t calls_ = 0;
  cuda::AttentionLists lists_;
  std::vector<float> finished_;
};

}  // namespace strata
