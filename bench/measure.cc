#include "bench/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/aligned_buffer.h"
#include "base/check.h"

namespace strata::bench {
namespace {

// 16-byte loads in eight independent chains: enough to keep a core's memory pipes full.
uint64_t XorOf(const std::byte* data, size_t bytes) {
  using Lane = uint64_t __attribute__((vector_size(16)));
  Lane lanes[8] = {};
  for (size_t at = 0; at + sizeof(lanes) <= bytes; at += sizeof(lanes)) {
    Lane line[8];
    std::memcpy(line, data + at, sizeof(line));
    for (int i = 0; i < 8; ++i) lanes[i] ^= line[i];
  }
  uint64_t result = 0;
  for (const Lane& lane : lanes) result ^= lane[0] ^ lane[1];
  return result;
}

}  // namespace

double Median(std::vector<double> values) {
  STRATA_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double RelativeRms(absl::Span<const float> a, absl::Span<const float> b) {
  STRATA_CHECK(a.size() == b.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error / norm);
}

double MedianSeconds(int runs, const std::function<void()>& body) {
  body();
  std::vector<double> seconds;
  seconds.reserve(runs);
  for (int i = 0; i < runs; ++i) seconds.push_back(Seconds(body));
  return Median(seconds);
}

double ReadBandwidth(ThreadPool* pool) {
  constexpr size_t kBytes = size_t{512} << 20;
  constexpr int64_t kParts = 64;
  auto buffer = AlignedBuffer::Allocate(kBytes);
  STRATA_CHECK(buffer.ok());
  std::memset(buffer->data(), 0x5a, kBytes);  // every page must be real memory
  std::vector<uint64_t> sums(kParts);
  const double seconds = MedianSeconds(5, [&] {
    pool->ParallelFor(kParts, [&](int64_t i, int) {
      sums[i] = XorOf(buffer->data() + kBytes / kParts * i, kBytes / kParts);
    });
  });
  volatile uint64_t sink = sums[0];
  static_cast<void>(sink);
  return kBytes / seconds;
}

}  // namespace strata::bench
