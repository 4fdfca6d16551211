#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/page_codec.h"

namespace strata {

// Reproducible numbers.
class TestRandom {
 public:
  explicit TestRandom(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t Next() {
    state_ = state_ * 1664525u + 1013904223u;
    return state_ >> 8;
  }
  float Uniform() { return static_cast<float>(Next() & 0xffff) / 32768.0f - 1.0f; }  // [-1, 1)
  // Mean 0, variance 1, within +-3.
  float Normal() { return Uniform() + Uniform() + Uniform(); }

 private:
  uint32_t state_;
};

// Memory that ends at a page no one may touch: reads and writes past its end stop the test.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size);
  ~GuardedBytes();
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* mapping_ = nullptr;
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// One implementation under test, with the pool it borrows.
struct KernelsUnderTest {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<PageCodec> codec;
};

// "reference", "scalar", "avx2" or "avx512"; empty pointers where this CPU lacks it.
KernelsUnderTest MakeKernels(const std::string& name, int threads);
inline const char* const kKernelNames[] = {"reference", "scalar", "avx2", "avx512"};

// How a block is stored and read.
struct BlockKinds {
  KvKind k = KvKind::kF16;
  KvKind v = KvKind::kF16;
  KvKind read_k = KvKind::kF16;
  KvKind read_v = KvKind::kF16;
  friend bool operator==(const BlockKinds&, const BlockKinds&) = default;
};

// Every combination of formats and readings, an I4 read as I2 included.
std::vector<BlockKinds> AllBlockKinds();

// One sequence's cache of one layer: random K and V, stored block by block in guarded memory.
class TestSequence {
 public:
  // Blocks in position order; the last one holds `tail` tokens (64: full) and must be F16 unless
  // it is full. What lies past `tail` is NaN.
  TestSequence(int32_t kv_heads, int32_t head_dim, const std::vector<BlockKinds>& blocks,
               int32_t tail, uint32_t seed);

  int32_t tokens() const { return tokens_; }
  int32_t block_count() const { return static_cast<int32_t>(blocks_.size()); }
  void SetSkip(int32_t block, uint64_t skip) { views_[block].skip = skip; }
  uint64_t skip(int32_t block) const { return views_[block].skip; }
  const BlockKinds& kinds(int32_t block) const { return blocks_[block]; }
  // The F16 bytes of a block, for damaging tokens that must not be read.
  std::byte* base(int32_t block) { return base_[block]->data(); }

  // Runs of blocks [begin, end), neighbours of one format in one run.
  std::vector<PageRun> Runs(int32_t begin, int32_t end) const;
  std::vector<PageRun> Runs() const { return Runs(0, block_count()); }

  // What an exact reader of the stored bytes sees: [token][channel] of one head.
  const float* K(int32_t block, int32_t head) const;
  const float* V(int32_t block, int32_t head) const;
  // The step s of a code group: K by channel, V by token and channel; 0 for F16.
  float KStep(int32_t block, int32_t head, int32_t channel) const;
  float VStep(int32_t block, int32_t head, int32_t token, int32_t channel) const;

 private:
  PageFormat FormatOf(int32_t block) const;

  int32_t kv_heads_, head_dim_, tokens_;
  std::vector<BlockKinds> blocks_;
  std::vector<std::unique_ptr<GuardedBytes>> base_, refine_;
  std::vector<KvPageView> views_;
  std::vector<std::vector<float>> k_, v_;
};

// q [rows][heads][dim] like a model's: unit normal, times 1/sqrt(dim), times `scale`.
std::vector<float> RandomQueries(int32_t rows, int32_t heads, int32_t dim, float scale,
                                 uint32_t seed);

}  // namespace strata
