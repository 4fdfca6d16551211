#include "tests/kernels/attention_test_util.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/reference/attention_reference.h"

namespace strata {

GuardedBytes::GuardedBytes(size_t size) : size_(size) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t pages = (size + page - 1) / page * page;
  mapped_ = pages + page;
  void* mapping =
      mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  STRATA_CHECK(mapping != MAP_FAILED);
  mapping_ = static_cast<std::byte*>(mapping);
  STRATA_CHECK(mprotect(mapping_ + pages, page, PROT_NONE) == 0);
  data_ = mapping_ + pages - size;
}

GuardedBytes::~GuardedBytes() { munmap(mapping_, mapped_); }

KernelsUnderTest MakeKernels(const std::string& name, int threads) {
  KernelsUnderTest kernels;
  if (name == "reference") {
    kernels.attention = MakeReferenceAttention();
    kernels.codec = MakeReferencePageCodec();
    return kernels;
  }
  const absl::StatusOr<Isa> isa = ChooseIsa(name);
  if (!isa.ok()) return kernels;
  kernels.pool = std::make_unique<ThreadPool>(threads);
  kernels.attention = MakeCpuAttention(*isa, kernels.pool.get());
  kernels.codec = MakeCpuPageCodec(*isa);
  return kernels;
}

std::vector<BlockKinds> AllBlockKinds() {
  const std::pair<KvKind, KvKind> readings[] = {{KvKind::kF16, KvKind::kF16},
                                                {KvKind::kI4, KvKind::kI4},
                                                {KvKind::kI4, KvKind::kI2},
                                                {KvKind::kI2, KvKind::kI2}};
  std::vector<BlockKinds> kinds;
  for (const auto& k : readings) {
    for (const auto& v : readings) kinds.push_back({k.first, v.first, k.second, v.second});
  }
  return kinds;
}

TestSequence::TestSequence(int32_t kv_heads, int32_t head_dim,
                           const std::vector<BlockKinds>& blocks, int32_t tail, uint32_t seed)
    : kv_heads_(kv_heads),
      head_dim_(head_dim),
      tokens_(kBlockTokens * (static_cast<int32_t>(blocks.size()) - 1) + tail),
      blocks_(blocks) {
  TestRandom random(seed);
  const std::unique_ptr<PageCodec> codec = MakeReferencePageCodec();
  const PageFormat f16{KvKind::kF16, KvKind::kF16, kv_heads, head_dim};
  const Half nan = 0x7e00;
  // Channels of K differ in size and place, as a model's do.
  std::vector<float> size(size_t{1} * kv_heads * head_dim), place(size.size());
  for (size_t i = 0; i < size.size(); ++i) {
    size[i] = std::exp(random.Normal() * 0.5f);
    place[i] = random.Normal();
  }
  for (int32_t b = 0; b < block_count(); ++b) {
    const int32_t valid = b + 1 == block_count() ? tail : kBlockTokens;
    auto source = std::make_unique<GuardedBytes>(f16.BaseBytes());
    for (int32_t h = 0; h < kv_heads; ++h) {
      Half* k = reinterpret_cast<Half*>(source->data() + f16.KHead(h));
      Half* v = reinterpret_cast<Half*>(source->data() + f16.VHead(h));
      for (int32_t t = 0; t < kBlockTokens; ++t) {
        for (int32_t c = 0; c < head_dim; ++c) {
          const size_t i = size_t{1} * h * head_dim + c;
          k[KF16Index(head_dim, t, c)] =
              t < valid ? FloatToHalf(place[i] + size[i] * random.Normal()) : nan;
          v[VF16Index(head_dim, t, c)] = t < valid ? FloatToHalf(random.Normal()) : nan;
        }
      }
    }
    const PageFormat format = FormatOf(b);
    if (format == f16) {
      base_.push_back(std::move(source));
      refine_.push_back(std::make_unique<GuardedBytes>(0));
    } else {
      base_.push_back(std::make_unique<GuardedBytes>(format.BaseBytes()));
      refine_.push_back(std::make_unique<GuardedBytes>(format.RefineBytes()));
      STRATA_CHECK(
          codec->Encode(source->data(), format, base_[b]->data(), refine_[b]->data()).ok());
    }
    const bool lo = blocks_[b].read_k == KvKind::kI4 || blocks_[b].read_v == KvKind::kI4;
    views_.push_back({base_[b]->data(), lo ? refine_[b]->data() : nullptr, 0});
    k_.emplace_back(f16.BaseBytes() / 4);
    v_.emplace_back(f16.BaseBytes() / 4);
    PageCodec::Decode(format, blocks_[b].read_k, blocks_[b].read_v, base_[b]->data(),
                      refine_[b]->data(), k_[b].data(), v_[b].data());
  }
}

PageFormat TestSequence::FormatOf(int32_t block) const {
  return {blocks_[block].k, blocks_[block].v, kv_heads_, head_dim_};
}

std::vector<PageRun> TestSequence::Runs(int32_t begin, int32_t end) const {
  std::vector<PageRun> runs;
  for (int32_t b = begin; b < end; ++b) {
    if (b == begin || !(blocks_[b] == blocks_[b - 1])) {
      runs.push_back({FormatOf(b), blocks_[b].read_k, blocks_[b].read_v, b, 0, 0, &views_[b]});
    }
    ++runs.back().page_count;
    runs.back().tokens += b + 1 == block_count() ? tokens_ - b * kBlockTokens : kBlockTokens;
  }
  return runs;
}

const float* TestSequence::K(int32_t block, int32_t head) const {
  return &k_[block][size_t{1} * head * kBlockTokens * head_dim_];
}
const float* TestSequence::V(int32_t block, int32_t head) const {
  return &v_[block][size_t{1} * head * kBlockTokens * head_dim_];
}

float TestSequence::KStep(int32_t block, int32_t head, int32_t channel) const {
  const PageFormat format = FormatOf(block);
  if (format.k == KvKind::kF16) return 0;
  Half s;
  std::memcpy(&s,
              base_[block]->data() + format.KHead(head) + format.PlaneBytes() +
                  format.KParamBytes() + 2 * channel,
              sizeof(s));
  return HalfToFloat(s);
}

float TestSequence::VStep(int32_t block, int32_t head, int32_t token, int32_t channel) const {
  const PageFormat format = FormatOf(block);
  if (format.v == KvKind::kF16) return 0;
  const int32_t index = channel / format.VGroup() * kBlockTokens + token;
  Half s;
  std::memcpy(&s,
              base_[block]->data() + format.VHead(head) + format.PlaneBytes() +
                  format.VParamBytes() + 2 * index,
              sizeof(s));
  return HalfToFloat(s);
}

std::vector<float> RandomQueries(int32_t rows, int32_t heads, int32_t dim, float scale,
                                 uint32_t seed) {
  TestRandom random(seed);
  std::vector<float> q(size_t{1} * rows * heads * dim);
  for (float& x : q) x = random.Normal() * scale / std::sqrt(static_cast<float>(dim));
  return q;
}

}  // namespace strata
